//! How does a machine become a host of the cluster? An operator makes a token for it; the machine shows the token to a
//! process that has the key of the authority, once, and gets its first certificate. From then on it renews the
//! certificate with the one that it has, until it is revoked.
//!
//! What a certificate is made out to comes from the metadata, never from the machine that asks for it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use capstan_control::keys::HostId;
use capstan_meta::record::{Extra, Key as _};
use capstan_meta::{LeaseId, Store, Txn, clock};

use crate::api::event;
use crate::certs::{Authority, CertError, Description, Fingerprint, HostNames, MAX_ADDRESSES, files};
use crate::error::{AccessError, Refused};
use crate::keys::{EnrolledKey, JoinId, JoinKey, Signers};
use crate::secret::{Secret, Token, TokenKind};
use crate::spec::{EnrolledHost, Hash, JoinRecord};

/// How long a token to join is valid, unless another time is asked for.
pub const TICKET_LIFE: Duration = Duration::from_secs(3600);
/// A token to join is valid for no longer than this.
pub const TICKET_LIFE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most roles of a new host.
const MAX_ROLES: usize = 16;
/// Most processes that a ticket names: one that answers is enough.
const MAX_SIGNERS: usize = 5;

/// All that a new machine needs to know: the token, the authority to expect, and which processes to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The token, which is used once.
    pub token: Token,
    /// The fingerprint of the authority.
    pub authority: Fingerprint,
    /// The processes that sign certificates.
    pub signers: Vec<SocketAddr>,
}

impl Ticket {
    /// The ticket that this text is, if it is one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Ticket> {
        let mut parts = text.trim().splitn(3, '.');
        let (token, authority, signers) = (parts.next()?, parts.next()?, parts.next()?);
        let token = Token::parse(token).filter(|token| token.kind == TokenKind::Join)?;
        let signers = signers.split(',').map(|address| address.parse().ok()).collect::<Option<Vec<_>>>()?;
        Some(Ticket { token, authority: Fingerprint::parse(authority)?, signers })
    }

    /// The ticket itself, shown once, to the caller that created it.
    #[must_use]
    pub fn text(&self) -> Secret {
        let signers = self.signers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Secret::new(format!("{}.{}.{signers}", self.token.text().reveal(), self.authority))
    }
}

/// A host that is to join.
#[derive(Clone, Debug)]
pub struct NewHost {
    /// Its name.
    pub host: HostId,
    /// The addresses at which others will reach it.
    pub addresses: Vec<IpAddr>,
    /// What it is to do.
    pub roles: Vec<String>,
    /// For how long the token is valid.
    pub ttl: Duration,
}

/// Makes a token for a new host.
pub async fn ticket_create(store: &Store, new: &NewHost, actor: &str) -> Result<Ticket, AccessError> {
    check(new)?;
    let (authority, signers) = signers(store).await?;
    let token = Token::generate(TokenKind::Join);
    let record = JoinRecord {
        host: new.host.clone(),
        addresses: new.addresses.clone(),
        roles: new.roles.clone(),
        hash: Hash(token.hash()),
        expires_at: (clock::since_epoch() + new.ttl).as_secs(),
        extra: Extra::default(),
    };
    let lease = store.lease_grant(new.ttl, LeaseId::NONE).await?.id;
    let key = JoinKey { id: JoinId::new(&token.id)? };
    let event = event(actor, "made", format!("a token to join for host {}", new.host));
    store.commit(Txn::new().then(key.put(&record).lease(lease)).then(event.put())).await?;
    Ok(Ticket { token, authority, signers })
}

fn check(new: &NewHost) -> Result<(), AccessError> {
    let wrong = |text: String| Err(AccessError::Invalid(text));
    if new.addresses.is_empty() || new.addresses.len() > MAX_ADDRESSES {
        return wrong(format!("name from 1 to {MAX_ADDRESSES} addresses of the host"));
    }
    if let Some(address) = new.addresses.iter().find(|address| address.is_unspecified()) {
        return wrong(format!("{address} is not the address of one host"));
    }
    if new.roles.len() > MAX_ROLES {
        return wrong(format!("a host has at most {MAX_ROLES} roles"));
    }
    if new.ttl < Duration::from_secs(1) || new.ttl > TICKET_LIFE_MAX {
        return wrong("a token to join is valid for 1s to 7d".to_owned());
    }
    Ok(())
}

/// The processes that sign, and their authority. Those of another authority than the first one's are left out.
async fn signers(store: &Store) -> Result<(Fingerprint, Vec<SocketAddr>), AccessError> {
    let listed = store.list(&Signers {}).await?;
    let records: Vec<_> = listed.iter().map(|(_, stored)| &stored.record).collect();
    let Some(first) = records.first() else {
        let text = "no running process has the key of the authority; start one whose `tls.dir` has ca.key";
        return Err(AccessError::Invalid(text.to_owned()));
    };
    let same = records.iter().filter(|record| record.authority == first.authority);
    let mut addresses: Vec<SocketAddr> = same.map(|record| record.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(MAX_SIGNERS);
    Ok((first.authority.clone(), addresses))
}

/// Where certificates are renewed: the processes that have the key of the authority.
pub async fn signers_list(store: &Store) -> Result<Vec<SocketAddr>, AccessError> {
    Ok(signers(store).await?.1)
}

/// Has the certificate of a host no longer renewed. The present one is valid until its end.
pub async fn host_revoke(store: &Store, host: &HostId, actor: &str) -> Result<(), AccessError> {
    let key = EnrolledKey { host: host.clone() };
    let event = event(actor, "revoked", format!("the certificate of host {host}"));
    let txn = Txn::new().when(key.present()).then(key.delete()).then(event.put());
    match store.commit(txn).await?.succeeded {
        true => Ok(()),
        false => Err(AccessError::Unenrolled(host.clone())),
    }
}

/// What a new host is given beside its certificate.
#[derive(Clone, Default)]
pub struct Welcome {
    /// Settings that all hosts share, as text.
    pub settings: Vec<(String, Secret)>,
    /// Settings for hosts with this role only.
    pub of_role: Vec<(String, String, Secret)>,
    /// The authority of the metadata store (PEM), where it is another one.
    pub meta_authority: Option<String>,
}

impl fmt::Debug for Welcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Welcome({} settings)", self.settings.len() + self.of_role.len())
    }
}

/// A host that was admitted.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Its name.
    pub host: HostId,
    /// The addresses that its certificate is made out to.
    pub addresses: Vec<IpAddr>,
    /// What it is to do.
    pub roles: Vec<String>,
    /// Its certificate chain (PEM), which ends with the authority's.
    pub chain: String,
    /// Its settings, as text.
    pub settings: Vec<(String, Secret)>,
    /// The authority of the metadata store (PEM), where it is another one.
    pub meta_authority: Option<String>,
}

/// Signs certificates with the key of the authority, which it reads whenever it signs.
#[derive(Clone, Debug)]
pub struct Signer {
    /// The certificate of the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// How long certificates are valid.
    pub life: Duration,
    /// What new hosts are given.
    pub welcome: Welcome,
}

impl Signer {
    /// The authority, as its files are now.
    pub fn authority(&self) -> Result<Authority, CertError> {
        files::read_authority(&self.certificate, &self.key)
    }

    /// Signs the first certificate of a host that shows a token, and uses the token up. A request that cannot be signed
    /// leaves the token as it is.
    pub async fn admit(&self, store: &Store, token: &str, request: &str) -> Result<Admitted, AccessError> {
        let token = Token::parse(token).filter(|token| token.kind == TokenKind::Join);
        let token = token.ok_or(Refused::Invalid)?;
        let key = JoinKey { id: JoinId::new(&token.id)? };
        let seen = store.read(&key).await?.ok_or(Refused::Invalid)?;
        let JoinRecord { host, addresses, roles, hash, expires_at, .. } = seen.record.clone();
        if !token.has_hash(&hash.0) || expires_at <= clock::since_epoch().as_secs() {
            return Err(Refused::Invalid.into());
        }
        let chain = self.sign(request, host.clone(), addresses.clone())?;
        let since = clock::since_epoch().as_secs();
        let record = EnrolledHost { addresses: addresses.clone(), since, extra: Extra::default() };
        let enrolled = EnrolledKey { host: host.clone() };
        let event = event(&format!("host {host}"), "joined", "the cluster with a token".to_owned());
        let txn = Txn::new()
            .when(key.unchanged(&seen))
            .then(key.delete())
            .then(enrolled.put(&record))
            .then(event.put());
        if !store.commit(txn).await?.succeeded {
            return Err(Refused::Invalid.into());
        }
        let settings = self.settings(&roles);
        let meta_authority = self.welcome.meta_authority.clone();
        Ok(Admitted { host, addresses, roles, chain, settings, meta_authority })
    }

    fn settings(&self, roles: &[String]) -> Vec<(String, Secret)> {
        let of_role = self.welcome.of_role.iter().filter(|(role, _, _)| roles.contains(role));
        let of_role = of_role.map(|(_, name, value)| (name.clone(), value.clone()));
        self.welcome.settings.iter().cloned().chain(of_role).collect()
    }

    /// Signs another certificate of a host that showed its present one, which TLS has verified.
    pub async fn renew(
        &self,
        store: &Store,
        shown: &Description,
        request: &str,
    ) -> Result<(HostId, String), AccessError> {
        let host: HostId = shown.subject.parse()?;
        let enrolled = store.read(&EnrolledKey { host: host.clone() }).await?;
        let Some(enrolled) = enrolled else { return Err(AccessError::Unenrolled(host)) };
        let chain = self.sign(request, host.clone(), enrolled.record.addresses.clone())?;
        Ok((host, chain))
    }

    fn sign(&self, request: &str, host: HostId, addresses: Vec<IpAddr>) -> Result<String, AccessError> {
        Ok(self.authority()?.sign(request, &HostNames { host, addresses }, self.life)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_found_again_by_its_text_and_shown_nowhere_else() {
        let ticket = Ticket {
            token: Token::generate(TokenKind::Join),
            authority: Fingerprint::of(b"an authority"),
            signers: vec!["10.0.0.1:7700".parse().unwrap(), "[fd00::1]:7700".parse().unwrap()],
        };
        let text = ticket.text();
        assert_eq!(Ticket::parse(text.reveal()), Some(ticket.clone()));
        let secret = text.reveal().split(['_', '.']).nth(2).unwrap();
        assert!(!format!("{ticket:?}").contains(secret));
        let key = Token::generate(TokenKind::AccessKey).text();
        let other_kind = text.reveal().replace("cjt_", "csk_");
        let no_signer = text.reveal().rsplit_once('.').unwrap().0;
        for wrong in ["", "cjt_", key.reveal(), &other_kind, no_signer, &format!("{no_signer}.nowhere")] {
            assert_eq!(Ticket::parse(wrong), None, "{wrong}");
        }
    }
}
