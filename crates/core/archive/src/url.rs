//! URLs of archives: the engine that a URL names, and the location.

use std::path::Path;

/// The forms of URLs, for messages.
pub(crate) const URL_FORMS: &str =
    "sqlite:PATH, cassandra://HOST1,HOST2/KEYSPACE, or memory: for an archive that ends with the process";

/// The engines of this release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Cassandra,
    Memory,
    Sqlite,
}

impl Engine {
    /// The engine of URLs with this scheme.
    pub(crate) fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "cassandra" => Some(Self::Cassandra),
            "memory" => Some(Self::Memory),
            "sqlite" => Some(Self::Sqlite),
            _ => None,
        }
    }
}

/// Whether archives with the same URL are the same archive: those in memory are not.
pub(crate) fn identifies_archive(url: &str) -> bool {
    let engine = url.split_once(':').and_then(|(scheme, _)| Engine::of(scheme));
    matches!(engine, Some(Engine::Cassandra | Engine::Sqlite))
}

/// The location in a URL, without user, password and settings.
pub(crate) fn location(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else { return url.to_owned() };
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    if Engine::of(scheme) == Some(Engine::Sqlite) {
        let path = Path::new(rest);
        // A relative path or a link must give the same location. A file that does not exist yet cannot be resolved.
        let path = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
        return path.map_or_else(|_| url.to_owned(), |path| format!("sqlite:{}", path.display()));
    }
    let rest = rest.split('?').next().unwrap_or(rest);
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts = authority.rsplit('@').next().unwrap_or(authority);
    let mut hosts: Vec<&str> = hosts.split(',').collect();
    hosts.sort_unstable();
    format!("{scheme}://{}/{path}", hosts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_has_no_secrets_and_no_order_of_hosts() {
        let url = "cassandra://user:secret@h2,h1/survey?dc=a&password_file=/x";
        assert_eq!(location(url), "cassandra://h1,h2/survey");
        assert_eq!(location("cassandra://h1,h2/survey"), location(url));
        assert_ne!(location("cassandra://h1,h2/other"), location(url));
        assert_eq!(location("sqlite:/nowhere/a.db"), location("sqlite:///nowhere/a.db"));
        assert_eq!(location("memory:"), "memory:///");
    }
}
