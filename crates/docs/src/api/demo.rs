//! The collection that a newcomer finds.

use bson::{Document, doc};

use super::catalogue::{Catalogue, Created, collection_name, database_name};
use super::documents::{Documents, NotInserted};
use crate::error::DocsError;
use crate::node::Node;

/// Creates a small collection to try, once: not if it, or any database, is there.
pub async fn create_demo(node: &Node, database: &str, collection: &str) -> Result<(), DocsError> {
    let catalogue = Catalogue(node);
    let (database, collection) = (database_name(database)?, collection_name(collection)?);
    let known = catalogue.databases().await?;
    if known.iter().any(|known| *known != database) {
        return Ok(());
    }
    catalogue.create_database(&database).await?;
    let created = catalogue.create_collection(&database, &collection, vec!["name".to_owned()]).await?;
    let router = &node.inner.router;
    let target = router.target(&database, &collection).await?;
    let documents = Documents { router, target };
    if created == Created::Before && documents.count(&Document::new()).await? > 0 {
        return Ok(());
    }
    for outcome in documents.insert(planets()).await {
        match outcome {
            Ok(_) | Err(NotInserted { error: DocsError::Duplicate(_), .. }) => {}
            Err(NotInserted { error, .. }) => return Err(error),
        }
    }
    Ok(())
}

fn planets() -> Vec<Document> {
    let planet = |name: &str, moons: i32, radius_km: i32| doc! { "name": name, "moons": moons, "radius_km": radius_km };
    vec![
        planet("Mercury", 0, 2_440),
        planet("Venus", 0, 6_052),
        planet("Earth", 1, 6_371),
        planet("Mars", 2, 3_390),
        planet("Jupiter", 95, 69_911),
        planet("Saturn", 146, 58_232),
        planet("Uranus", 28, 25_362),
        planet("Neptune", 16, 24_622),
    ]
}
