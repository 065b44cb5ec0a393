//! The aggregates by name, and the settings that control them.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// An aggregate: those of OPC UA Part 13 (5.4.3) by their standard names, and three more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantArray)]
#[allow(missing_docs, reason = "the names are the standard's; the guide of the historian says what each gives")]
pub enum Aggregate {
    Interpolative,
    Average,
    TimeAverage,
    TimeAverage2,
    Total,
    Total2,
    Minimum,
    Maximum,
    MinimumActualTime,
    MaximumActualTime,
    Range,
    Minimum2,
    Maximum2,
    MinimumActualTime2,
    MaximumActualTime2,
    Range2,
    AnnotationCount,
    Count,
    DurationInStateZero,
    DurationInStateNonZero,
    NumberOfTransitions,
    Start,
    End,
    Delta,
    StartBound,
    EndBound,
    DeltaBounds,
    DurationGood,
    DurationBad,
    PercentGood,
    PercentBad,
    WorstQuality,
    WorstQuality2,
    StandardDeviationSample,
    StandardDeviationPopulation,
    VarianceSample,
    VariancePopulation,
    /// Percentile of the Good values, linear between neighbours; [`Settings::percent`] says which.
    Percentile,
    /// Increase per second of a counter that may fall back to zero.
    Rate,
    /// Number of distinct Good values.
    Distinct,
}

use Aggregate::*;

/// The list of values from which an aggregate is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// The values in the interval only.
    Raw,
    /// The values in the interval and simple bounding values.
    Simple,
    /// The values in the interval and interpolated bounding values.
    Interpolated,
}

/// Names of aggregates in other systems, for suggestions.
const COMMON_NAMES: [(&str, &str); 9] = [
    ("avg", "Average"),
    ("mean", "Average"),
    ("twa", "TimeAverage"),
    ("sum", "Total"),
    ("integral", "Total"),
    ("stddev", "StandardDeviationSample"),
    ("first", "Start"),
    ("last", "End"),
    ("median", "Percentile"),
];

impl Aggregate {
    /// All aggregates, those of the standard first.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The aggregate with this name, in the spelling of the standard.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// The message for an unknown name, shown as `shown`: suggests the nearest aggregates and lists all.
    #[must_use]
    pub fn unknown(name: &str, shown: &str) -> String {
        let known: Vec<&str> = Self::ALL.iter().map(|aggregate| aggregate.name()).collect();
        let common = COMMON_NAMES.iter().find(|(common, _)| common.eq_ignore_ascii_case(name));
        let near = common.map_or_else(|| chronotile_types::nearest(name, &known), |&(_, aggregate)| vec![aggregate]);
        let advice =
            if near.is_empty() { ": use".to_owned() } else { format!("; did you mean {}? Use", near.join(" or ")) };
        format!("unknown aggregate {shown}{advice} one of {}", known.join(", "))
    }

    pub(crate) fn family(self, settings: &Settings) -> Family {
        match self {
            Interpolative | TimeAverage | Total | Rate => Family::Interpolated,
            TimeAverage2
            | Total2
            | Minimum2
            | Maximum2
            | MinimumActualTime2
            | MaximumActualTime2
            | Range2
            | DurationInStateZero
            | DurationInStateNonZero
            | StartBound
            | EndBound
            | DeltaBounds
            | DurationGood
            | DurationBad
            | PercentGood
            | PercentBad
            | WorstQuality2 => Family::Simple,
            VarianceSample | VariancePopulation if settings.sample_results => Family::Simple,
            _ => Family::Raw,
        }
    }

    /// Whether it can be computed for text, because it uses only times and qualities.
    pub fn needs_no_number(self) -> bool {
        matches!(
            self,
            AnnotationCount
                | Count
                | DurationGood
                | DurationBad
                | PercentGood
                | PercentBad
                | WorstQuality
                | WorstQuality2
        )
    }

    /// Whether it can be computed from a [`crate::rules::Segment`] instead of the points.
    pub fn takes_segments(self, settings: &Settings) -> bool {
        let departs = settings.sample_results && self.departs_in_samples();
        // Sloped extrapolation needs the last two points.
        !departs
            && !settings.sloped_extrapolation
            && !matches!(self, Percentile | Distinct | Rate | DurationInStateZero | DurationInStateNonZero)
    }

    /// Whether the results published with the OPC Foundation's sample data depart from the text of the standard.
    fn departs_in_samples(self) -> bool {
        matches!(
            self,
            StandardDeviationSample
                | StandardDeviationPopulation
                | VarianceSample
                | VariancePopulation
                | AnnotationCount
        )
    }

    /// Whether points before the interval matter even if there is one exactly at its start.
    pub fn looks_back_always(self) -> bool {
        self == NumberOfTransitions
    }
}

/// How an aggregate treats qualities and gaps; Part 13, 4.2.1.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Whether each value holds until the next one; otherwise values between points are interpolated linearly.
    pub stepped: bool,
    /// Whether Uncertain values count as Bad.
    pub treat_uncertain_as_bad: bool,
    /// Minimum percentage of Good for a Good result, 0 to 100.
    pub percent_good: f64,
    /// Minimum percentage of Bad for a Bad result, 0 to 100.
    pub percent_bad: f64,
    /// Whether to extrapolate past the last value along the line through the last two; otherwise the last value holds.
    pub sloped_extrapolation: bool,
    /// The percentile to compute, 0 to 100.
    pub percent: f64,
    /// Whether to reproduce the results published with the OPC Foundation's sample data where they depart from the text
    /// of the standard: the four deviations; `AnnotationCount`, which counts values there because each has an
    /// annotation; `Delta` without a Good value; the first transition; and Partial if the data end before the last
    /// interval.
    pub sample_results: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stepped: false,
            treat_uncertain_as_bad: true,
            percent_good: 100.0,
            percent_bad: 100.0,
            sloped_extrapolation: false,
            percent: 50.0,
            sample_results: false,
        }
    }
}

/// Invalid settings; Part 13, 4.2.1.2, for which the standard specifies Bad_AggregateInvalidInputs.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsRefused {
    /// Less than 0, more than 100, or not a number.
    #[error("invalid percentage {0}: give 0 to 100")]
    NoPercentage(f64),
    /// A result could be both Good and Bad.
    #[error("percent_good {good} and percent_bad {bad} overlap: together they are at least 100")]
    Overlap {
        /// Minimum percentage of Good for a Good result.
        good: f64,
        /// Minimum percentage of Bad for a Bad result.
        bad: f64,
    },
}

impl Settings {
    /// Validates the percentages.
    ///
    /// # Errors
    /// A percentage is invalid, or those of quality overlap.
    pub fn check(&self) -> Result<(), SettingsRefused> {
        let (good, bad) = (self.percent_good, self.percent_bad);
        if let Some(value) = [good, bad, self.percent].into_iter().find(|value| !(0.0..=100.0).contains(value)) {
            return Err(SettingsRefused::NoPercentage(value));
        }
        if good + bad < 100.0 {
            return Err(SettingsRefused::Overlap { good, bad });
        }
        Ok(())
    }

    /// The status of a result with these Good and Bad parts; Part 13, 5.4.3.2.1. If both reach their thresholds the
    /// result is Bad, as in the examples of the standard. If `total` is zero the result is Good.
    pub(crate) fn code_of_parts(&self, good: f64, bad: f64, total: f64) -> super::Status {
        use super::Status;
        let percent = |part: f64| part / total * 100.0;
        // The Bad part must not be empty: with a threshold of 0, any result without Bad values would be Bad.
        if total <= 0.0 {
            Status::GOOD
        } else if bad > 0.0 && percent(bad) >= self.percent_bad {
            Status::BAD
        } else if percent(good) >= self.percent_good {
            Status::GOOD
        } else {
            Status::UNCERTAIN_SUB_NORMAL
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_aggregate_is_found_by_its_name() {
        for &aggregate in Aggregate::ALL {
            assert_eq!(Aggregate::from_name(aggregate.name()), Some(aggregate));
        }
        assert_eq!(Aggregate::from_name("timeaverage"), None);
        assert_eq!(Aggregate::ALL.iter().filter(|a| !matches!(a, Percentile | Rate | Distinct)).count(), 37);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_and_all_aggregates() {
        for (name, meant) in
            [("Avg", "Average"), ("mean", "Average"), ("timeaverage", "TimeAverage"), ("Maximun", "Maximum")]
        {
            let message = Aggregate::unknown(name, name);
            assert!(message.starts_with(&format!("unknown aggregate {name}; did you mean {meant}")), "{message}");
            assert!(message.ends_with("Percentile, Rate, Distinct"), "{message}");
        }
        assert!(Aggregate::unknown("zzzzzz", "zzzzzz").starts_with("unknown aggregate zzzzzz: use one of "));
        for (common, aggregate) in COMMON_NAMES {
            assert!(Aggregate::from_name(aggregate).is_some(), "{common}");
        }
    }
}
