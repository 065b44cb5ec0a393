//! TLS configuration of connections, from PEM files.

use std::error::Error;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::{CqlError, Result};
use crate::settings::Tls;

pub(crate) fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca)? {
        roots.add(certificate).map_err(|e| refused(tls.ca.display(), e))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|e| refused(tls.ca.display(), e))?;
    let verifier: Arc<dyn ServerCertVerifier> =
        if tls.check_names { verifier } else { Arc::new(AnyName { inner: verifier }) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| CqlError::TlsFiles { reason: e.to_string(), source: Some(Arc::new(e)) })?
        // The only way to set a verifier. Both verifiers check the certificate's authority and validity.
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| refused(key.display(), e))?;
            config
                .with_client_auth_cert(certificates(certificate)?, secret)
                .map_err(|e| refused(format!("{} with {}", certificate.display(), key.display()), e))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let found = found.map_err(|e| refused(file.display(), e))?;
    if found.is_empty() {
        let reason = format!("{}: it holds no certificate in PEM form", file.display());
        return Err(CqlError::TlsFiles { reason, source: None });
    }
    Ok(found)
}

fn refused(files: impl Display, error: impl Error + Send + Sync + 'static) -> CqlError {
    CqlError::TlsFiles { reason: format!("{files}: {error}"), source: Some(Arc::new(error)) }
}

/// Accepts a certificate of a known authority whatever name stands in it.
#[derive(Debug)]
struct AnyName {
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        use rustls::Error::InvalidCertificate;
        // Names are compared last: whoever gets that far has passed the other checks.
        match self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_file_is_named_with_its_source() {
        let error = certificates(Path::new("/nowhere/ca.pem")).unwrap_err();
        let source = error.source().expect("the error of the operating system").to_string();
        assert_eq!(error.to_string(), format!("TLS: /nowhere/ca.pem: {source}"));
    }
}
