//! TLS and QUIC settings of the control plane, and the certificate check
//! (`docs/protocol.md` §1 and §2).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::constant_time;
use bytes::Bytes;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, ConnectionId, ConnectionIdGenerator, EndpointConfig, RandomConnectionIdGenerator,
    ServerConfig, TokenStore, TransportConfig, VarInt,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::random_bytes;
use super::session::MAX_MESSAGE_LEN;
use crate::shards::Place;
use crate::ticket::{Identity, pin_of};

/// The versions of the protocol that this program speaks, newest first, by their ALPN ids (§2.3).
const VERSIONS: &[&[u8]] = &[b"sphinx/2"];
/// QUIC wants a name; it is not sent.
pub(super) const SERVER_NAME: &str = "sphinx";
/// Before the first sample: QUIC probes after three times this (RFC 9002 §6.2.2). Copies are sooner.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// Of QUIC's connection ids, bytes.
const CID_LEN: usize = 8;
/// A TLS flight of ours is below 2 kB; a peer's needs no more room than this.
const CRYPTO_BUFFER_LEN: usize = 8 * 1024;

/// One key exchange and one cipher: the ClientHello fits one datagram, which counts on a lossy
/// link. A post-quantum exchange would need two and add little, since the session's keys also
/// depend on the ticket's secret (§3).
fn crypto_provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![provider::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![provider::kx_group::X25519],
        ..provider::default_provider()
    }
}

/// Settings of an endpoint, whose connection ids name the `place`, if there is one.
pub(super) fn endpoint_config(place: Option<Place>) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    // RFC 9443 tells the planes apart by the bit that grease would flip.
    config.grease_quic_bit(false);
    config.supported_versions(vec![1]);
    // The default's 24 random bits collide under a flood of clients.
    config.cid_generator(move || match &place {
        Some(place) => Box::new(ShardIds(place.clone())),
        None => Box::new(RandomConnectionIdGenerator::new(CID_LEN)),
    });
    config
}

/// Ids of one shard: random ones that name it.
struct ShardIds(Place);

impl ConnectionIdGenerator for ShardIds {
    fn generate_cid(&mut self) -> ConnectionId {
        loop {
            let id: [u8; CID_LEN] = random_bytes();
            if self.0.is_named_by(id) {
                return ConnectionId::new(&id);
            }
        }
    }

    fn cid_len(&self) -> usize {
        CID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Small windows, no probing, no timeout: liveness, path MTU and everything large belong to the
/// data plane.
fn transport_config() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(None)
        .keep_alive_interval(None)
        .initial_rtt(INITIAL_RTT)
        .mtu_discovery_config(None)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(1))
        .stream_receive_window(VarInt::from_u32(MAX_MESSAGE_LEN as u32 + 1))
        .receive_window(VarInt::from_u32(2 * MAX_MESSAGE_LEN as u32))
        .send_window(2 * MAX_MESSAGE_LEN as u64)
        .crypto_buffer_size(CRYPTO_BUFFER_LEN)
        .datagram_receive_buffer_size(None)
        .enable_segmentation_offload(false);
    Arc::new(config)
}

pub(super) fn server_config(identity: &Identity) -> ServerConfig {
    server_config_of(identity, VERSIONS)
}

/// Settings of a server that speaks these versions.
pub(super) fn server_config_of(identity: &Identity, versions: &[&[u8]]) -> ServerConfig {
    let certificate = CertificateDer::from(identity.certificate().to_vec());
    let key = PrivatePkcs8KeyDer::from(identity.key().to_vec());
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(crypto_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider's only suite is of TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .expect("an identity's key fits its certificate");
    tls.alpn_protocols = ids(versions);
    tls.send_tls13_tickets = 0;
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    let quic = QuicServerConfig::try_from(tls).expect("has the suite that QUIC begins with");
    let mut config = ServerConfig::with_crypto(Arc::new(quic));
    config.transport_config(transport_config());
    // After the handshake only the data plane moves.
    config.migration(false);
    config.validation_token.sent(0);
    config
}

fn ids(versions: &[&[u8]]) -> Vec<Vec<u8>> {
    versions.iter().map(|id| id.to_vec()).collect()
}

/// The settings of one connection, whose first packets carry `token`, and a flag that its verifier raises when the server is not the
/// pinned one.
pub(super) fn client_config(
    pin: &[u8; 32],
    token: Option<Vec<u8>>,
) -> (ClientConfig, Arc<AtomicBool>) {
    let wrong_server = Arc::new(AtomicBool::new(false));
    let provider = Arc::new(crypto_provider());
    let verifier = PinVerifier {
        pin: *pin,
        wrong_server: wrong_server.clone(),
        provider: provider.clone(),
    };
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider's only suite is of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    tls.alpn_protocols = ids(VERSIONS);
    tls.enable_sni = false;
    tls.resumption = rustls::client::Resumption::disabled();
    let quic = QuicClientConfig::try_from(tls).expect("has the suite that QUIC begins with");
    let mut config = ClientConfig::new(Arc::new(quic));
    config.transport_config(transport_config());
    config.token_store(Arc::new(OneToken(Mutex::new(token))));
    (config, wrong_server)
}

/// What the first packets of one connection carry.
struct OneToken(Mutex<Option<Vec<u8>>>);

impl TokenStore for OneToken {
    fn insert(&self, _: &str, _: Bytes) {}

    fn take(&self, _: &str) -> Option<Bytes> {
        let mut token = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        token.take().map(Bytes::from)
    }
}

/// Accepts one certificate only, by its hash, whatever it says; the signature over the handshake
/// shows that the server has its key.
#[derive(Debug)]
struct PinVerifier {
    pin: [u8; 32],
    wrong_server: Arc<AtomicBool>,
    provider: Arc<CryptoProvider>,
}

impl PinVerifier {
    fn refuse(&self, error: Error) -> Error {
        self.wrong_server.store(true, Ordering::Relaxed);
        error
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        constant_time::verify_slices_are_equal(&pin_of(end_entity), &self.pin)
            .map(|()| ServerCertVerified::assertion())
            .map_err(|_| self.refuse(CertificateError::ApplicationVerificationFailure.into()))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(self.refuse(Error::General("TLS 1.2 is not QUIC".into())))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms).map_err(|e| self.refuse(e))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
