//! TLS configuration of connections, from PEM files.

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
    let refuse = |reason: String| CqlError::TlsFiles { reason };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca)? {
        roots.add(certificate).map_err(|e| refuse(format!("{}: {e}", tls.ca.display())))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|e| refuse(format!("{}: {e}", tls.ca.display())))?;
    let verifier: Arc<dyn ServerCertVerifier> =
        if tls.check_names { verifier } else { Arc::new(AnyName { inner: verifier }) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| refuse(e.to_string()))?
        // The only way to set a verifier. Both verifiers check the certificate's authority and validity.
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| refuse(format!("{}: {e}", key.display())))?;
            config
                .with_client_auth_cert(certificates(certificate)?, secret)
                .map_err(|e| refuse(format!("{} with {}: {e}", certificate.display(), key.display())))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let refuse = |reason: String| CqlError::TlsFiles { reason: format!("{}: {reason}", file.display()) };
    let read = CertificateDer::pem_file_iter(file).map_err(|e| refuse(e.to_string()))?;
    let found = read.collect::<std::result::Result<Vec<_>, _>>().map_err(|e| refuse(e.to_string()))?;
    if found.is_empty() { Err(refuse("it holds no certificate in PEM form".to_owned())) } else { Ok(found) }
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
