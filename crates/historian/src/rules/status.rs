//! Status codes of OPC UA (Part 4, 7.39; aggregate bits: Part 13, 5.3.3) and points that carry them.

/// A 32-bit OPC UA status code: severity and sub-code in the upper half, information bits below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// Good.
    pub const GOOD: Self = Self(0);
    /// Uncertain, for no stated reason.
    pub const UNCERTAIN: Self = Self(0x4000_0000);
    /// Uncertain_DataSubNormal: derived from fewer Good values than required.
    pub const UNCERTAIN_SUB_NORMAL: Self = Self(0x40A4_0000);
    /// Bad, for no stated reason.
    pub const BAD: Self = Self(0x8000_0000);
    /// Bad_NoData.
    pub const BAD_NO_DATA: Self = Self(0x809B_0000);

    /// Aggregate bit: computed from several values.
    pub const CALCULATED: u32 = 0x01;
    /// Aggregate bit: interpolated between values.
    pub const INTERPOLATED: u32 = 0x02;
    /// Aggregate bit: the data cover only a part of the interval.
    pub const PARTIAL: u32 = 0x04;
    /// Aggregate bit: several values match the criteria of the aggregate.
    pub const MULTIPLE_VALUES: u32 = 0x10;

    /// Marks the aggregate bits as valid.
    const INFO_DATA_VALUE: u32 = 0x400;
    const CODE_MASK: u32 = 0xFFFF_0000;

    /// Whether its severity is Good.
    pub fn is_good(self) -> bool {
        self.0 >> 30 == 0
    }

    /// Whether its severity is Uncertain.
    pub fn is_uncertain(self) -> bool {
        self.0 >> 30 == 1
    }

    /// Whether its severity is Bad.
    pub fn is_bad(self) -> bool {
        self.0 >> 30 >= 2
    }

    /// Severity and sub-code, without information bits.
    pub fn code(self) -> Self {
        Self(self.0 & Self::CODE_MASK)
    }

    /// This status with additional aggregate bits.
    pub fn with(self, bits: u32) -> Self {
        if bits == 0 { self } else { Self(self.0 | Self::INFO_DATA_VALUE | bits) }
    }
}

/// One point of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Nanoseconds since the Unix epoch.
    pub time: i64,
    /// Its value; NaN if there is none.
    pub value: f64,
    /// Its quality.
    pub status: Status,
}

/// The class of a point under the settings of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    // In ascending order: `min` of two classes is the worse one.
    Bad,
    Uncertain,
    Good,
}

impl Class {
    pub(crate) fn usable(self) -> bool {
        self != Self::Bad
    }

    /// The status of a value that is interpolated from points of this class or better.
    pub(crate) fn interpolated(self) -> Status {
        match self {
            Self::Good => Status::GOOD.with(Status::INTERPOLATED),
            Self::Uncertain => Status::UNCERTAIN_SUB_NORMAL.with(Status::INTERPOLATED),
            Self::Bad => Status::BAD_NO_DATA,
        }
    }
}

impl Point {
    /// The class of the point: Bad if it has no value, or if it is Uncertain and those count as Bad.
    pub(crate) fn class(&self, treat_uncertain_as_bad: bool) -> Class {
        if self.status.is_good() && !self.value.is_nan() {
            Class::Good
        } else if self.status.is_uncertain() && !treat_uncertain_as_bad && !self.value.is_nan() {
            Class::Uncertain
        } else {
            Class::Bad
        }
    }
}
