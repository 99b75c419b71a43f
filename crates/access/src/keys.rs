//! Every key of identities, access keys, roles and sessions. The only place of this crate with key text.

use capstan_control::keys::HostId;
use capstan_meta::{keys, names};

use crate::spec::{
    EnrolledHost, IdentityRecord, JoinRecord, KeyRecord, LastUse, RoleRecord, SessionRecord, SignerRecord,
};

names! {
    /// Names a user or a service account. Both share one name space, so that an event has one actor.
    pub struct IdentityName;

    /// The public part of an access key.
    pub struct KeyId;

    /// The public part of a token to join.
    pub struct JoinId;

    /// Names a role.
    pub struct RoleName;

    /// The public part of a session's token.
    pub struct SessionId;
}

keys! {
    /// Every key of access, in the order of the path.
    pub const CATALOGUE;

    /// A host that may have its certificate renewed, and the addresses that the certificate is made out to.
    pub struct EnrolledKey { host: HostId } at "/capstan/access/hosts/{host}" => EnrolledHost {
        writer: "the process that signed its first certificate; removed by `capstan certs revoke`",
        lifetime: Durable,
        prefixes: [
            /// Every host with a certificate of the cluster.
            pub struct Enrolled {} at "/capstan/access/hosts/",
        ],
    }

    /// A user or a service account: its roles and grants, and for a user the argon2id hash of its password.
    pub struct IdentityKey { identity: IdentityName } at "/capstan/access/identities/{identity}" => IdentityRecord {
        writer: "`capstan access`, the API, and the first start of a cluster",
        lifetime: Durable,
        secrecy: Secret,
        prefixes: [
            /// Every identity.
            pub struct Identities {} at "/capstan/access/identities/",
        ],
    }

    /// A token with which a new host gets its first certificate: the SHA-256 of its random secret, and the host.
    pub struct JoinKey { id: JoinId } at "/capstan/access/joins/{id}" => JoinRecord {
        writer: "`capstan certs token`, the API; removed when the token is used",
        lifetime: Leased,
        secrecy: Secret,
        prefixes: [
            /// Every token to join that was not used yet.
            pub struct Joins {} at "/capstan/access/joins/",
        ],
    }

    /// An access key: the SHA-256 of its random secret, its identity, its scope and its end.
    pub struct AccessKeyKey { id: KeyId } at "/capstan/access/keys/{id}" => KeyRecord {
        writer: "`capstan access key`, the API; removed when the key is revoked or its identity is removed",
        lifetime: Durable,
        secrecy: Secret,
        prefixes: [
            /// Every access key.
            pub struct AccessKeys {} at "/capstan/access/keys/",
        ],
    }

    /// A role made by an operator: a name for some grants.
    pub struct RoleKey { role: RoleName } at "/capstan/access/roles/{role}" => RoleRecord {
        writer: "`capstan access role`, the API",
        lifetime: Durable,
        prefixes: [
            /// Every role made by an operator.
            pub struct Roles {} at "/capstan/access/roles/",
        ],
    }

    /// A session of a browser or of a client of topics: the SHA-256 of its random token, and what it stands for.
    pub struct SessionKey { session: SessionId } at "/capstan/access/sessions/{session}" => SessionRecord {
        writer: "the process that signed the identity in",
        lifetime: Leased,
        secrecy: Secret,
        prefixes: [
            /// Every session.
            pub struct Sessions {} at "/capstan/access/sessions/",
        ],
    }

    /// A process that has the key of the authority and signs certificates of hosts.
    pub struct SignerKey { signer: HostId } at "/capstan/access/signers/{signer}" => SignerRecord {
        writer: "the process itself, under its lease",
        lifetime: Leased,
        prefixes: [
            /// Every process that signs certificates.
            pub struct Signers {} at "/capstan/access/signers/",
        ],
    }

    /// When an access key was last used, to the minute.
    pub struct LastUseKey { id: KeyId } at "/capstan/access/used/{id}" => LastUse {
        writer: "the process that accepted the key; removed with the key",
        lifetime: Durable,
        prefixes: [
            /// The last use of every access key.
            pub struct LastUses {} at "/capstan/access/used/",
        ],
    }
}
