//! K11 and K12: what is kept for Vault.

use capstan_fleet::FleetError;
use capstan_fleet::api::{Secret, Unsealed, VaultSecret};
use capstan_fleet::keys::CATALOGUE;
use capstan_meta::record::{Key, is_secret};

use crate::rig::Rig;
use crate::rig::webhook::{Answer, Webhook};

fn sealed(sealed: bool) -> Answer {
    Answer::Json(serde_json::json!({ "sealed": sealed, "t": 3, "n": 5, "progress": 1 }))
}

pub(super) async fn k47_without_a_key_unsealing_does_nothing(rig: Rig) {
    let vault = Webhook::start(sealed(false)).await;
    let fleet = rig.fleet();
    assert_eq!(fleet.vault_unseal(&vault.url).await, Ok(Unsealed::NoKey));
    assert!(vault.heard().is_empty());
    fleet.vault_set(VaultSecret::UnsealKey, &Secret::new("abc\n")).await.unwrap();
    assert_eq!(fleet.vault_unseal(&vault.url).await, Ok(Unsealed::Open));
    let heard = vault.heard().remove(0);
    assert_eq!((heard.method.as_str(), heard.target.as_str()), ("PUT", "/v1/sys/unseal"));
    assert_eq!(heard.body, serde_json::json!({ "key": "abc" }));
    vault.answer(sealed(true));
    let more = Unsealed::StillSealed { progress: 1, threshold: 3 };
    assert_eq!(fleet.vault_unseal(&vault.url).await, Ok(more));
    vault.answer(Answer::Status(400));
    let refused = fleet.vault_unseal(&vault.url).await.unwrap_err().to_string();
    assert!(refused.contains("refused the unseal key") && !refused.contains("abc"), "{refused}");
}

pub(super) async fn k48_the_key_is_shown_and_removed(rig: Rig) {
    let fleet = rig.fleet();
    fleet.vault_set(VaultSecret::UnsealKey, &Secret::new("abc")).await.unwrap();
    assert_eq!(fleet.vault_show(VaultSecret::UnsealKey).await.unwrap().reveal(), "abc");
    fleet.vault_remove(VaultSecret::UnsealKey).await.unwrap();
    let gone = FleetError::NotFound("vault unseal key".to_owned());
    assert_eq!(fleet.vault_show(VaultSecret::UnsealKey).await, Err(gone.clone()));
    assert_eq!(fleet.vault_remove(VaultSecret::UnsealKey).await, Err(gone));
    assert!(fleet.vault_set(VaultSecret::UnsealKey, &Secret::new(" ")).await.is_err());
}

pub(super) async fn k49_secrets_are_not_shown_by_accident(rig: Rig) {
    assert_eq!(format!("{:?}", Secret::new("abc")), "Secret(redacted)");
    for path in [rig.tree.vault_unseal().path(), rig.tree.vault_root_token().path()] {
        assert!(is_secret(&[CATALOGUE], &path), "{path}");
    }
    assert!(is_secret(&[CATALOGUE], &rig.tree.proxy().path()), "it may hold a password");
    assert!(!is_secret(&[CATALOGUE], &rig.tree.source().path()));
}

pub(super) async fn k50_there_is_no_root_token_by_default(rig: Rig) {
    let fleet = rig.fleet();
    let absent = fleet.vault_show(VaultSecret::RootToken).await;
    assert_eq!(absent, Err(FleetError::NotFound("vault root token".to_owned())));
    fleet.vault_set(VaultSecret::RootToken, &Secret::new("s.abc")).await.unwrap();
    assert_eq!(fleet.vault_show(VaultSecret::RootToken).await.unwrap().reveal(), "s.abc");
}
