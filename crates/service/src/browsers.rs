//! Protects a service without tokens from web pages of other sites: a browser on this machine can reach the loopback interface for
//! any page that it shows.
//!
//! `Origin` and `Sec-Fetch-Site`, which pages cannot change, reveal requests of other origins. `Host` reveals DNS rebinding: a name
//! that was pointed to 127.0.0.1 after the page was loaded. Forms can send only three content types, so endpoints that have a
//! type of their own require it.

use axum::http::request::Parts;
use axum::http::{HeaderName, header};

use chronotile_types::ErrorKind;

use crate::access::Role;
use crate::endpoints::Endpoint;
use crate::failure::{Failure, Result};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses requests that a page of another site may have sent. Of these headers, programs send only `Host`.
pub(crate) fn check(parts: &Parts, role: Role) -> Result<()> {
    let refuse = |kind, message: String| Err(Failure::new(kind, message));
    let hosts = parts.headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or("?"));
    for host in hosts.chain(parts.uri.authority().map(|authority| authority.as_str())) {
        if !is_loopback(host) {
            let message = format!(
                "the request is for host {host:?}, but a service without tokens accepts only requests to this \
                machine: use 127.0.0.1 or localhost, or start it with --tokens"
            );
            return refuse(ErrorKind::ForeignHost, message);
        }
    }
    // The page itself and the state of the service are open to all, also by a link on another site.
    if role == Role::Open {
        return Ok(());
    }
    let own = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
    for origin in parts.headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or("?");
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        if authority.is_none() || !own.is_some_and(|own| authority.is_some_and(|given| own.eq_ignore_ascii_case(given)))
        {
            let message = format!(
                "the request comes from a page of {origin:?}: a service without tokens accepts none from pages of \
                other sites; start it with --tokens"
            );
            return refuse(ErrorKind::ForeignOrigin, message);
        }
    }
    let mut sites = parts.headers.get_all(SEC_FETCH_SITE).iter();
    if sites.any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
        let message = "the request comes from a page of another site: a service without tokens accepts none; start it \
        with --tokens";
        return refuse(ErrorKind::ForeignOrigin, message.into());
    }
    Ok(())
}

/// Refuses a body whose content type the endpoint does not accept. JSON, rows and messages require their own types,
/// which a page cannot send to another origin without a CORS preflight. Lines are accepted under any type, and messages
/// without one, because collectors send them so.
pub(crate) fn check_type(parts: &Parts, endpoint: &Endpoint) -> Result<()> {
    let types = endpoint.content_types();
    let given = parts.headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?")).unwrap_or_default();
    let given = given.split(';').next().unwrap_or_default().trim();
    let untyped = given.is_empty() && !types.contains(&"application/json");
    if untyped || types.contains(&"text/plain") || types.iter().any(|known| known.eq_ignore_ascii_case(given)) {
        return Ok(());
    }
    let found = if given.is_empty() { "of no type".to_owned() } else { format!("{given:?}") };
    let message = format!("the body is {found}: send {} in the header Content-Type", types.join(" or "));
    Err(Failure::new(ErrorKind::UnsupportedType, message))
}

/// Whether a host, with or without a port, is a loopback name or address that does not depend on DNS.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn refused(role: Role, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::builder().uri("/v1/tags");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0, role).err().map(|failure| failure.kind.name().to_owned())
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in
            ["localhost", "LocalHost:80", "127.0.0.1:8086", "127.1.2.3", "[::1]:8086", "[::1]", "[::ffff:127.0.0.1]"]
        {
            assert_eq!(refused(Role::Read, &[("host", host)]), None, "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example:80", "10.0.0.1:8086", "", "127.0.0.1.evil:1", "[::2]:1", "a:b:1"]
        {
            assert_eq!(refused(Role::Read, &[("host", host)]).as_deref(), Some("foreign-host"), "{host}");
            assert_eq!(refused(Role::Open, &[("host", host)]).as_deref(), Some("foreign-host"), "{host}");
        }
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(refused(Role::Read, &twice).as_deref(), Some("foreign-host"));
        assert_eq!(refused(Role::Read, &[]), None, "a program that names no host");
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let own = ("host", "127.0.0.1:8086");
        assert_eq!(refused(Role::Write, &[own, ("origin", "http://127.0.0.1:8086")]), None);
        for origin in ["http://127.0.0.1:3000", "http://localhost:8086", "https://evil.example", "null", ""] {
            assert_eq!(refused(Role::Write, &[own, ("origin", origin)]).as_deref(), Some("foreign-origin"), "{origin}");
        }
        for (site, allowed) in [("same-origin", true), ("none", true), ("same-site", false), ("cross-site", false)] {
            assert_eq!(refused(Role::Read, &[own, ("sec-fetch-site", site)]).is_none(), allowed, "{site}");
            assert_eq!(refused(Role::Open, &[own, ("sec-fetch-site", site)]), None, "a link to the page");
        }
    }
}
