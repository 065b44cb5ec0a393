//! The settings of a cluster, parsed from a URL.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scylla::statement::Consistency;

use crate::error::{CqlError, Result};

/// Default port of the native protocol.
pub const PORT: u16 = 9042;
/// Maximum number of partitions for the catalog of a dataset.
pub const CATALOG_BUCKETS_MAX: u32 = 65_536;

/// How to connect to a cluster and how to use it. The form of the URL:
/// `cassandra://[USER@]HOST[:PORT][,HOST[:PORT]...]/KEYSPACE[?NAME=VALUE&...]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `HOST:PORT` of the nodes to contact first, which report the others.
    pub contact_points: Vec<String>,
    /// Keyspace of the archive; empty if the URL does not name one.
    pub keyspace: String,
    /// `dc`: data centre whose nodes serve requests. Default: all data centres.
    pub data_centre: Option<String>,
    /// `rack`: rack of that data centre whose nodes are preferred for reads.
    pub rack: Option<String>,
    /// `dc_failover`: whether nodes of other data centres serve requests while the preferred one has no node up. Default false.
    pub data_centre_failover: bool,
    /// `consistency` or `read_consistency`: consistency level of reads. Default `LOCAL_QUORUM` with a data centre, else `QUORUM`.
    pub read_consistency: Consistency,
    /// `consistency` or `write_consistency`: consistency level of writes. The same default.
    pub write_consistency: Consistency,
    /// `serial_consistency`: consistency level of conditional writes, `SERIAL` (default) or `LOCAL_SERIAL`.
    pub local_serial: bool,
    /// `timeout_s`: time limit of a request in seconds, retries included. 1 to 3,600, default 30.
    pub timeout: Duration,
    /// `in_flight`: maximum number of concurrent requests; further ones wait. 1 to 4,096, default 128.
    pub in_flight: usize,
    /// `speculative_ms`: milliseconds after which a read or an idempotent write is also sent to another node; 0 disables this.
    /// Up to 60,000, default 500.
    pub speculative: Option<Duration>,
    /// User and password, if the cluster requires them.
    pub credentials: Option<Credentials>,
    /// Encryption, if the cluster requires it.
    pub tls: Option<Tls>,
    /// `replication`: replication factors, used when the keyspace is created.
    pub replication: Option<Replication>,
    /// `catalog_buckets`: number of partitions for the catalog of a dataset; fixed when the keyspace is created. 1 to 65,536,
    /// default 256.
    pub catalog_buckets: u32,
    /// Options of new tables.
    pub table: TableOptions,
}

/// Replication factors of a keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replication {
    /// The same replication factor in every data centre.
    Everywhere(u32),
    /// Replication factors by data centre.
    ByDataCentre(BTreeMap<String, u32>),
}

impl Replication {
    /// Parses `3` or `dc1:3,dc2:2`.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let factor = |text: &str| match text.parse::<u32>() {
            Ok(factor @ 1..=100) => Ok(factor),
            _ => Err(format!("{text:?} is not a number of copies from 1 to 100")),
        };
        if !text.contains(':') {
            return factor(text).map(Self::Everywhere);
        }
        let mut factors = BTreeMap::new();
        for part in text.split(',') {
            let (name, copies) = part.split_once(':').ok_or(format!("{part:?} is not DATACENTRE:COPIES"))?;
            // The name becomes part of a CQL text, between quotes.
            if name.is_empty() || name.contains(['\'', '"', '{', '}']) {
                return Err(format!("{name:?} is not the name of a data centre"));
            }
            factors.insert(name.to_owned(), factor(copies)?);
        }
        Ok(Self::ByDataCentre(factors))
    }
}

/// User and password. Neither `Debug` nor any message shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Role for the login.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Encryption of client connections. All files are in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// `ca`: certificates of the authorities that may sign a node's certificate.
    pub ca: PathBuf,
    /// `cert`: this client's certificate, followed by its intermediates.
    pub certificate: Option<PathBuf>,
    /// `key`: this client's private key.
    pub key: Option<PathBuf>,
    /// `tls_names`: whether a node's certificate must name the node's address. Default true.
    pub check_names: bool,
}

/// Options of the tables that store chunks. `docs/cluster.md` gives the reasons for the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// `compaction`: name of the strategy's class. Default `LeveledCompactionStrategy`.
    pub compaction: String,
    /// `compression`: name of the compressor's class, or `none`. Default `none`: chunks are compressed already.
    pub compression: Option<String>,
    /// `gc_grace_s`: seconds for which tombstones are kept; a node that was down for longer must be rebuilt. Default 864,000
    /// (ten days).
    pub gc_grace_s: u32,
    /// `speculative_retry`: when a coordinator queries one more replica. Default `99p`.
    pub speculative_retry: String,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            compaction: "LeveledCompactionStrategy".to_owned(),
            compression: None,
            gc_grace_s: 864_000,
            speculative_retry: "99p".to_owned(),
        }
    }
}

/// Environment variables with user and password, for URLs without them.
const USER_VARIABLE: &str = "CHRONOTILE_CASSANDRA_USER";
const PASSWORD_VARIABLE: &str = "CHRONOTILE_CASSANDRA_PASSWORD";

/// The URL for messages: `***` replaces the password, everything between the user and the last `@`, and settings whose names
/// suggest secrets.
pub fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (&url[..scheme.len() + 3], rest));
    // Question marks before the last `@` are part of a password.
    let hosts = rest.rfind('@').unwrap_or(0);
    let (place, query) = rest.split_at(rest[hosts..].find('?').map_or(rest.len(), |mark| hosts + mark));
    let place = match (place.split_once(':'), place.rsplit_once('@')) {
        // A colon after the last `@` belongs to a port, not to a password.
        (Some((user, _)), Some((secret, hosts))) if user.len() < secret.len() => format!("{user}:***@{hosts}"),
        _ => place.to_owned(),
    };
    let shown = |part: &str| match part.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}=***"),
        _ => part.to_owned(),
    };
    let query: Vec<String> = query.split('&').map(shown).collect();
    format!("{scheme}{place}{}", query.join("&"))
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["password", "passwd", "secret", "token"].iter().any(|word| name.ends_with(word))
}

impl Settings {
    /// Parses a URL. The password is read from `password_file` or from the environment.
    pub fn parse(url: &str) -> Result<Self> {
        let refuse = |reason: String| CqlError::Url { url: without_password(url), reason };
        Parser::new(url).map_err(refuse)?.settings().map_err(refuse)
    }
}

struct Parser<'a> {
    user: Option<String>,
    hosts: &'a str,
    keyspace: &'a str,
    values: BTreeMap<String, String>,
}

/// Result of parsing a part of a URL. The error is the reason for refusing it.
pub type Refusal<T> = std::result::Result<T, String>;

impl<'a> Parser<'a> {
    fn new(url: &'a str) -> Refusal<Self> {
        let rest = url.strip_prefix("cassandra://").ok_or("it does not begin with cassandra://")?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may contain slashes.
        if place.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
            return Err(
                "a password does not belong in a URL, where others see it: name a file with password_file=, or set \
                        CHRONOTILE_CASSANDRA_PASSWORD"
                    .to_owned(),
            );
        }
        let (authority, keyspace) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(decode(user)?), hosts),
            None => (None, authority),
        };
        let mut values = BTreeMap::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(format!("{part:?} is not NAME=VALUE"))?;
            if values.insert(name.to_owned(), decode(value)?).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        Ok(Self { user, hosts, keyspace, values })
    }

    fn settings(mut self) -> Refusal<Settings> {
        let data_centre = self.values.remove("dc");
        let rack = self.values.remove("rack");
        if rack.is_some() && data_centre.is_none() {
            return Err("rack= needs dc=".to_owned());
        }
        let default = if data_centre.is_some() { "LOCAL_QUORUM" } else { "QUORUM" };
        let both = self.values.remove("consistency").unwrap_or_else(|| default.to_owned());
        // ANY is a level of writes only; reads then use the default.
        let read = self.values.remove("read_consistency");
        let read = read.unwrap_or_else(|| if both == "ANY" { default.to_owned() } else { both.clone() });
        let write = self.values.remove("write_consistency").unwrap_or(both);
        let settings = Settings {
            contact_points: contact_points(self.hosts)?,
            keyspace: keyspace(self.keyspace)?,
            data_centre_failover: self.flag("dc_failover", false)?,
            read_consistency: read_consistency(&read)?,
            write_consistency: write_consistency(&write)?,
            local_serial: self.local_serial()?,
            timeout: Duration::from_secs(self.number("timeout_s", 1..=3_600, 30)?),
            in_flight: self.number("in_flight", 1..=4_096, 128)? as usize,
            speculative: match self.number("speculative_ms", 0..=60_000, 500)? {
                0 => None,
                ms => Some(Duration::from_millis(ms)),
            },
            credentials: self.credentials()?,
            tls: self.tls()?,
            replication: self.values.remove("replication").map(|text| Replication::parse(&text)).transpose()?,
            catalog_buckets: self.number("catalog_buckets", 1..=CATALOG_BUCKETS_MAX.into(), 256)? as u32,
            table: self.table()?,
            data_centre,
            rack,
        };
        match self.values.keys().next() {
            Some(name) => Err(format!("{name} is not one of: {}", NAMES.join(", "))),
            None => Ok(settings),
        }
    }

    fn flag(&mut self, name: &str, default: bool) -> Refusal<bool> {
        match self.values.remove(name).as_deref() {
            None => Ok(default),
            Some("true" | "1" | "yes" | "on") => Ok(true),
            Some("false" | "0" | "no" | "off") => Ok(false),
            Some(other) => Err(format!("{name}={other} is neither true nor false")),
        }
    }

    fn number(&mut self, name: &str, range: std::ops::RangeInclusive<u64>, default: u64) -> Refusal<u64> {
        let Some(text) = self.values.remove(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("{name}={text} is not a whole number from {} to {}", range.start(), range.end()))
    }

    fn local_serial(&mut self) -> Refusal<bool> {
        match self.values.remove("serial_consistency").as_deref() {
            None | Some("SERIAL") => Ok(false),
            Some("LOCAL_SERIAL") => Ok(true),
            Some(other) => Err(format!("serial_consistency={other} is neither SERIAL nor LOCAL_SERIAL")),
        }
    }

    fn credentials(&mut self) -> Refusal<Option<Credentials>> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let file = self.values.remove("password_file");
        let Some(user) = self.user.take().or_else(|| variable(USER_VARIABLE)) else {
            return match file {
                Some(_) => Err(format!("password_file= needs a user: cassandra://USER@HOST..., or {USER_VARIABLE}")),
                None => Ok(None),
            };
        };
        let password = match file {
            Some(file) => {
                let text = std::fs::read_to_string(&file);
                text.map_err(|e| format!("reading password_file {file}: {e}"))?
                    .trim_end_matches(['\r', '\n'])
                    .to_owned()
            }
            None => variable(PASSWORD_VARIABLE).ok_or(format!(
                "there is no password for user {user}: name a file with password_file=, or set {PASSWORD_VARIABLE}"
            ))?,
        };
        Ok(Some(Credentials { user, password }))
    }

    fn tls(&mut self) -> Refusal<Option<Tls>> {
        let ca = self.values.remove("ca").map(PathBuf::from);
        let certificate = self.values.remove("cert").map(PathBuf::from);
        let key = self.values.remove("key").map(PathBuf::from);
        let check_names = self.flag("tls_names", true)?;
        let wanted = self.flag("tls", ca.is_some())?;
        if certificate.is_some() != key.is_some() {
            return Err("cert= and key= belong together".to_owned());
        }
        match (wanted, ca) {
            (true, Some(ca)) => Ok(Some(Tls { ca, certificate, key, check_names })),
            (true, None) => Err("tls=true needs ca=FILE, the certificates of the authorities that sign the nodes' \
            certificates"
                .to_owned()),
            (false, None) if certificate.is_none() => Ok(None),
            (false, _) => Err("ca=, cert= and key= require tls=true".to_owned()),
        }
    }

    fn table(&mut self) -> Refusal<TableOptions> {
        let default = TableOptions::default();
        // The values become parts of CREATE TABLE, for which CQL has no markers.
        let word = |name: &str, text: String| match text.is_empty() || !text.chars().all(|c| c.is_alphanumeric()) {
            true => Err(format!("{name}={text} is not the name of a class")),
            false => Ok(text),
        };
        let compaction = self.values.remove("compaction").unwrap_or(default.compaction);
        let compression = match self.values.remove("compression") {
            None => default.compression,
            Some(text) if text == "none" => None,
            Some(text) => Some(word("compression", text)?),
        };
        let retry = self.values.remove("speculative_retry").unwrap_or(default.speculative_retry);
        if retry.is_empty() || !retry.chars().all(|c| c.is_alphanumeric() || "(),. ".contains(c)) {
            return Err(format!("speculative_retry={retry} is not one of 99p, 50ms, ALWAYS, NONE, MIN(99p,50ms)"));
        }
        Ok(TableOptions {
            compaction: word("compaction", compaction)?,
            compression,
            gc_grace_s: self.number("gc_grace_s", 0..=31_536_000, default.gc_grace_s.into())? as u32,
            speculative_retry: retry,
        })
    }
}

const NAMES: [&str; 22] = [
    "dc",
    "rack",
    "dc_failover",
    "consistency",
    "read_consistency",
    "write_consistency",
    "serial_consistency",
    "timeout_s",
    "in_flight",
    "speculative_ms",
    "password_file",
    "tls",
    "ca",
    "cert",
    "key",
    "tls_names",
    "replication",
    "catalog_buckets",
    "compaction",
    "compression",
    "gc_grace_s",
    "speculative_retry",
];

fn contact_points(hosts: &str) -> Refusal<Vec<String>> {
    let with_port = |host: &str| -> Refusal<String> {
        if host.is_empty() {
            return Err("it names no host, or an empty one: cassandra://HOST1,HOST2/KEYSPACE".to_owned());
        }
        // A bare IPv6 address contains colons; with a port it is in brackets.
        let port = match host.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => Some(port),
            _ => None,
        };
        match port {
            Some(port) if port.parse::<u16>().is_err() => Err(format!("{port:?} is not a port")),
            Some(_) => Ok(host.to_owned()),
            None if host.contains(':') && !host.starts_with('[') => Ok(format!("[{host}]:{PORT}")),
            None => Ok(format!("{host}:{PORT}")),
        }
    };
    hosts.split(',').map(with_port).collect()
}

/// Checks a keyspace name: it must be valid without quotes, in lower case, with at most 48 characters.
fn keyspace(name: &str) -> Refusal<String> {
    let usable = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    // An empty name is valid: reading any table needs no keyspace. The engine of archives refuses it.
    let starts = name.chars().next().is_none_or(|c| c.is_ascii_lowercase());
    if name.len() > 48 || !starts || !name.chars().all(usable) {
        return Err(format!(
            "{name:?} is not a usable keyspace: at most 48 of a to z, 0 to 9 and _, beginning with a letter"
        ));
    }
    Ok(name.to_owned())
}

/// Parses a consistency level of reads.
pub fn read_consistency(name: &str) -> Refusal<Consistency> {
    match write_consistency(name)? {
        Consistency::Any => Err("ANY is a consistency level of writes only".to_owned()),
        level => Ok(level),
    }
}

/// Parses a consistency level of writes.
pub fn write_consistency(name: &str) -> Refusal<Consistency> {
    Ok(match name {
        "ANY" => Consistency::Any,
        "ONE" => Consistency::One,
        "TWO" => Consistency::Two,
        "THREE" => Consistency::Three,
        "QUORUM" => Consistency::Quorum,
        "ALL" => Consistency::All,
        "LOCAL_QUORUM" => Consistency::LocalQuorum,
        "EACH_QUORUM" => Consistency::EachQuorum,
        "LOCAL_ONE" => Consistency::LocalOne,
        _ => {
            return Err(format!(
                "{name:?} is not a consistency level: ANY (writes only), ONE, TWO, THREE, QUORUM, LOCAL_QUORUM, \
                 EACH_QUORUM, ALL or LOCAL_ONE"
            ));
        }
    })
}

/// Decodes percent-encoding.
fn decode(text: &str) -> Refusal<String> {
    let broken = || format!("{text:?} has a % that is not followed by two hexadecimal digits");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(broken)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| broken())?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

impl Tls {
    /// The files, for messages.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.ca), self.certificate.as_ref(), self.key.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(url: &str) -> String {
        match Settings::parse(url).unwrap_err() {
            CqlError::Url { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_url_gives_contact_points_and_defaults() {
        let settings = Settings::parse("cassandra://a,b:9999,::1,[::1]:7/survey").unwrap();
        assert_eq!(settings.contact_points, ["a:9042", "b:9999", "[::1]:9042", "[::1]:7"]);
        assert_eq!(settings.keyspace, "survey");
        assert_eq!(settings.read_consistency, Consistency::Quorum);
        let local = Settings::parse("cassandra://a/survey?dc=dc1").unwrap();
        assert_eq!(local.write_consistency, Consistency::LocalQuorum);
    }

    #[test]
    fn any_is_for_writes_and_leaves_reads_their_default() {
        let settings = Settings::parse("cassandra://a/k?consistency=ANY").unwrap();
        assert_eq!((settings.write_consistency, settings.read_consistency), (Consistency::Any, Consistency::Quorum));
        assert!(reason("cassandra://a/k?read_consistency=ANY").contains("writes only"));
    }

    #[test]
    fn invalid_settings_are_refused_with_advice() {
        for (url, part) in [
            ("cassandra://user:secret@a/k", "does not belong in a URL"),
            ("cassandra:///k", "names no host"),
            ("cassandra://a,/k", "names no host"),
            ("cassandra://a:x/k", "not a port"),
            ("cassandra://a/Survey", "not a usable keyspace"),
            ("cassandra://a/k?consistency=FOUR", "not a consistency level"),
            ("cassandra://a/k?colour=red", "is not one of"),
            ("cassandra://a/k?timeout_s=0", "from 1 to 3600"),
            ("cassandra://a/k?timeout_s=1&timeout_s=2", "given twice"),
            ("cassandra://a/k?tls=true", "needs ca="),
            ("cassandra://a/k?cert=c", "belong together"),
            ("cassandra://a/k?replication=dc1", "not a number of copies"),
            ("cassandra://a/k?compaction=x'y", "not the name of a class"),
            ("cassandra://a/k?rack=r", "needs dc="),
        ] {
            assert!(reason(url).contains(part), "{url}: {}", reason(url));
        }
    }

    #[test]
    fn no_refusal_shows_the_password() {
        for (url, shown) in [
            ("cassandra://ada:s3cret@a/k", "cassandra://ada:***@a/k"),
            ("cassandra://ada:s3/c@r:e?t@a/k?dc=x", "cassandra://ada:***@a/k?dc=x"),
            ("casandra://ada:s3cret@a:9042/k", "casandra://ada:***@a:9042/k"),
            ("ada:s3cret@a", "ada:***@a"),
            ("cassandra://a/k?Password=s3cret&dc=x", "cassandra://a/k?Password=***&dc=x"),
            ("cassandra://ada@a:9042/k?password_file=p", "cassandra://ada@a:9042/k?password_file=p"),
            ("cassandra://a:9042,b:9042/k", "cassandra://a:9042,b:9042/k"),
            ("sqlite:survey.db", "sqlite:survey.db"),
        ] {
            assert_eq!(without_password(url), shown);
            if let Err(error) = Settings::parse(url) {
                assert!(!error.to_string().contains("s3"), "{error}");
            }
        }
    }

    #[test]
    fn no_output_shows_the_password() {
        let secret = Credentials { user: "ada".to_owned(), password: "s3cret".to_owned() };
        assert!(!format!("{secret:?}").contains("s3cret"));
    }
}
