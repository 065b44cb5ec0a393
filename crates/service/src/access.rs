//! Authorization: bearer tokens with roles, read from a file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, header};

use chronotile_types::ErrorKind;

use crate::failure::{Failure, Result};
use crate::parameters::time_ns;
use crate::settings::ServiceError;

/// The role that a request requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// None: served without a token.
    Open,
    /// Reading.
    Read,
    /// Storing points, annotations and events.
    Write,
    /// Defining unknown tags when points of them are written. No endpoint requires this role by itself.
    Define,
    /// Definitions, deletions, retention, maintenance. Includes all other roles.
    Admin,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "none",
            Self::Read => "read",
            Self::Write => "write",
            Self::Define => "define",
            Self::Admin => "admin",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Read, Self::Write, Self::Define, Self::Admin].into_iter().find(|role| role.name() == name)
    }
}

#[derive(Debug)]
struct Token {
    name: String,
    roles: Vec<Role>,
    expires_ns: Option<i64>,
    /// Hash of the token. Comparing hashes in constant time keeps response times from revealing parts of a token.
    hash: blake3::Hash,
}

/// The client of a request.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The name of its token, if the service has tokens.
    pub name: Option<String>,
    /// Whether writes of this client may define unknown tags.
    pub may_define: bool,
}

/// The tokens of a file; empty if the service has no such file.
#[derive(Debug)]
pub(crate) struct Access {
    path: Option<PathBuf>,
    tokens: RwLock<Arc<Vec<Token>>>,
}

/// Minimum length of a token; a shorter one could be guessed.
const TOKEN_BYTES_MIN: usize = 16;

impl Access {
    /// Reads the file, one token per line: `NAME ROLES EXPIRES TOKEN`, such as `grafana read 2027-01-31 Zk3...`, with
    /// roles separated by commas, and `-` for a token that never expires. Lines that start with `#` are comments.
    pub fn open(path: Option<&Path>) -> std::result::Result<Self, ServiceError> {
        let tokens = path.map(read_tokens).transpose()?.unwrap_or_default();
        Ok(Self { path: path.map(Path::to_path_buf), tokens: RwLock::new(Arc::new(tokens)) })
    }

    pub fn is_required(&self) -> bool {
        self.path.is_some()
    }

    /// Reloads the file. On an error the previous tokens remain in use.
    pub fn reload(&self) -> std::result::Result<usize, ServiceError> {
        let Some(path) = &self.path else { return Ok(0) };
        let tokens = read_tokens(path)?;
        let count = tokens.len();
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
        Ok(count)
    }

    /// Identifies the client by the token of the request, and checks that its roles include `needed`.
    pub fn check(&self, headers: &HeaderMap, needed: Role, now_ns: i64) -> Result<Caller> {
        if !self.is_required() || needed == Role::Open {
            return Ok(Caller { name: None, may_define: !self.is_required() });
        }
        let refuse = |kind, message: String| Failure::new(kind, message);
        let Some(given) = bearer(headers) else {
            let message = "this service requires a token: send the header  Authorization: Bearer TOKEN";
            return Err(refuse(ErrorKind::TokenMissing, message.into()));
        };
        let hash = blake3::hash(given.as_bytes());
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut found = None;
        for token in tokens.iter() {
            // Do not stop at the match, so that the time does not reveal the position of a token.
            if token.hash == hash {
                found = Some(token);
            }
        }
        let Some(token) = found else {
            return Err(refuse(ErrorKind::TokenUnknown, "unknown token: ask for another".into()));
        };
        if token.expires_ns.is_some_and(|expires| expires <= now_ns) {
            return Err(refuse(
                ErrorKind::TokenExpired,
                format!("token {:?} has expired: ask for another", token.name),
            ));
        }
        let has = |role| token.roles.contains(&role) || token.roles.contains(&Role::Admin);
        if !has(needed) {
            let message = format!("token {:?} lacks the role {}: use one that has it", token.name, needed.name());
            return Err(Failure::new(ErrorKind::RoleMissing, message));
        }
        Ok(Caller { name: Some(token.name.clone()), may_define: has(Role::Define) })
    }
}

/// A warning if a file with secrets can be read by every user of this machine.
pub(crate) fn exposure(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| {
        let path = path.display();
        format!("{path} can be read by every user of this machine, who then may do what it allows: chmod o-rwx {path}")
    })
}

/// The token of `Authorization: Bearer TOKEN`, or of `Token TOKEN` as clients of InfluxDB send it.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let known = scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("token");
    known.then(|| token.trim())
}

fn read_tokens(path: &Path) -> std::result::Result<Vec<Token>, ServiceError> {
    let refuse = |reason: String| ServiceError::Tokens { path: path.to_path_buf(), reason };
    let unread = |source| ServiceError::ReadTokens { path: path.to_path_buf(), source };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let mut tokens: Vec<Token> = Vec::new();
    for (number, line) in lines {
        let new = token(line).map_err(|reason| refuse(format!("line {number} {reason}")))?;
        if tokens.iter().any(|known| known.name == new.name) {
            return Err(refuse(format!("line {number} repeats the name {:?}: give each token its own name", new.name)));
        }
        // With two lines for one token, it would be ambiguous whose roles apply.
        if let Some(known) = tokens.iter().find(|known| known.hash == new.hash) {
            return Err(refuse(format!("line {number} repeats the token of {:?}: generate a new one", known.name)));
        }
        tokens.push(new);
    }
    if tokens.is_empty() { Err(refuse("it holds no token".into())) } else { Ok(tokens) }
}

fn token(line: &str) -> std::result::Result<Token, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, roles, expires, token] = words[..] else {
        return Err("does not have four words: NAME ROLES EXPIRES TOKEN".into());
    };
    let role =
        |name: &str| Role::of(name).ok_or_else(|| format!("has role {name:?}: use read, write, define or admin"));
    let roles = roles.split(',').map(role).collect::<std::result::Result<_, _>>()?;
    let expires_ns = match expires {
        "-" => None,
        date => {
            // A time relative to now would move whenever the file is read.
            let time = time_ns(date, 0).ok().filter(|_| !date.starts_with("now"));
            Some(time.ok_or_else(|| format!("has date {date:?}: write 2027-01-31, or - for never"))?)
        }
    };
    if token.len() < TOKEN_BYTES_MIN {
        return Err(format!("has a token of fewer than {TOKEN_BYTES_MIN} characters"));
    }
    Ok(Token { name: name.into(), roles, expires_ns, hash: blake3::hash(token.as_bytes()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::NamedTempFile;

    /// A temporary file, which is removed even if the test fails.
    fn file_of(text: &str) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn access(text: &str) -> Access {
        Access::open(Some(file_of(text).path())).unwrap()
    }

    fn asking(token: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        headers
    }

    #[test]
    fn a_token_opens_what_its_roles_say_until_it_expires() {
        let access = access(
            "# people\nann read 1970-01-02 aaaaaaaaaaaaaaaaaaaa\nbob write,read - bbbbbbbbbbbbbbbbbbbb\nroot admin - cccccccccccccccccccc\n",
        );
        let kind = |token: &str, role, now| match access.check(&asking(token), role, now) {
            Ok(caller) => caller.name.unwrap_or_default(),
            Err(failure) => failure.kind.name().to_owned(),
        };
        let (ann, bob, root) = ("a".repeat(20), "b".repeat(20), "c".repeat(20));
        assert_eq!(kind(&ann, Role::Read, 1), "ann");
        assert_eq!(kind(&ann, Role::Write, 1), "role-missing");
        assert_eq!(kind(&ann, Role::Read, 86_400_000_000_000), "token-expired");
        assert_eq!(kind(&bob, Role::Write, 1), "bob");
        assert_eq!(kind(&bob, Role::Admin, 1), "role-missing");
        assert_eq!(kind(&root, Role::Write, 1), "root");
        assert_eq!(kind("b", Role::Read, 1), "token-unknown");
        assert_eq!(access.check(&HeaderMap::new(), Role::Read, 1).unwrap_err().kind, ErrorKind::TokenMissing);
        assert!(access.check(&HeaderMap::new(), Role::Open, 1).is_ok());
    }

    #[test]
    fn unknown_tags_are_defined_by_those_who_may() {
        let access = access(
            "ann write - aaaaaaaaaaaaaaaaaaaa\nbob write,define - bbbbbbbbbbbbbbbbbbbb\nroot admin - cccccccccccccccccccc\n",
        );
        let may = |token: &str| access.check(&asking(&token.repeat(20)), Role::Write, 1).unwrap().may_define;
        assert_eq!([may("a"), may("b"), may("c")], [false, true, true]);
        let everybody = Access::open(None).unwrap();
        assert!(everybody.check(&HeaderMap::new(), Role::Write, 1).unwrap().may_define);
    }

    #[test]
    fn a_file_that_others_can_read_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let file = file_of("");
        for (mode, named) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(exposure(file.path()).is_some(), named, "{mode:o}");
        }
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused_with_its_line() {
        for (text, reason) in [
            ("", "no token"),
            ("# a\nann read\n", "line 2 does not have four words"),
            ("ann owner - aaaaaaaaaaaaaaaaaaaa", "role \"owner\""),
            ("ann read soon aaaaaaaaaaaaaaaaaaaa", "date \"soon\""),
            ("ann read now+1d aaaaaaaaaaaaaaaaaaaa", "date \"now+1d\""),
            ("ann read - short", "fewer than 16"),
            (
                "ann read - aaaaaaaaaaaaaaaaaaaa\nbob admin - aaaaaaaaaaaaaaaaaaaa",
                "line 2 repeats the token of \"ann\"",
            ),
            ("ann read - aaaaaaaaaaaaaaaaaaaa\nann admin - bbbbbbbbbbbbbbbbbbbb", "line 2 repeats the name \"ann\""),
        ] {
            let message = Access::open(Some(file_of(text).path())).unwrap_err().to_string();
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn errors_of_files_name_their_source() {
        let missing = Path::new("/nowhere/tokens");
        let error = Access::open(Some(missing)).unwrap_err();
        let source = std::error::Error::source(&error).expect("the error of the operating system").to_string();
        assert_eq!(error.to_string(), format!("/nowhere/tokens: {source}"));
        let error = crate::server::acceptor(missing, missing).map(drop).unwrap_err();
        assert!(std::error::Error::source(&error).is_some(), "{error}");
    }
}
