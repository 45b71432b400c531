//! What may be had: the files that profiles name, and nothing else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
use evenkeel_registry::Digest;
use evenkeel_store::os_inside::{self, Offer};
use evenkeel_store::{Store, StoreError};
use tokio::sync::Mutex;
use url::Url;

use super::callers::Sees;

/// How long what is known counts.
const COUNTS_FOR: TimeDelta = TimeDelta::seconds(30);

/// How long something that is not known is not looked for again, at least.
const ABSENT_FOR: TimeDelta = TimeDelta::seconds(1);

/// So many times as long as a look took nobody looks for what is not known: asking for it must not keep the database busy.
const RATHER: i32 = 10;

/// Under which name a request asks for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// What it is.
    Digest(Digest),
    /// The path of its address in a profile, as [`plain`] has it.
    Path(String),
}

/// A file that may be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// What it is.
    pub digest: Digest,
    /// Where it can be fetched from; any will do.
    pub places: Vec<Place>,
}

/// Where a file can be fetched from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The name of the registry that says so.
    pub registry: String,
    /// Where it lies: `blob:<repository>@sha256:<hex>` or `web:<url>`.
    pub at: String,
    /// How many bytes it has, if that is known.
    pub size: Option<u64>,
}

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A file.
    One(Arc<Wanted>),
    /// Several files: profiles do not agree on what lies there.
    Several,
    /// Nothing that whoever asks may have.
    Nothing,
}

/// What may be had in all projects, as the database says now and then.
#[derive(Debug)]
pub(super) struct Offers {
    store: Store,
    clock: Arc<dyn Clock>,
    last: Mutex<Option<Look>>,
}

/// A look into the database.
#[derive(Clone, Debug)]
struct Look {
    at: Time,
    /// How long something that was not there is not looked for again.
    absent_for: TimeDelta,
    known: Arc<Known>,
}

/// What may be had.
#[derive(Debug, Default)]
struct Known {
    files: HashMap<Digest, Named>,
    paths: HashMap<String, BTreeMap<Digest, HashSet<TenantId>>>,
}

/// A file and the projects with a profile that names it.
#[derive(Debug)]
struct Named {
    wanted: Arc<Wanted>,
    tenants: HashSet<TenantId>,
}

impl Offers {
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            last: Mutex::default(),
        }
    }

    /// What a name leads to for somebody. What became known only now is found at once, and what is forgotten is found for
    /// half a minute.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn find(&self, name: &Name, sees: &Sees) -> Result<Found, StoreError> {
        let last = self.look(|_| COUNTS_FOR).await?;
        let found = last.known.find(name, sees);
        if found != Found::Nothing {
            return Ok(found);
        }
        let fresh = self.look(|last| last.absent_for).await?;
        Ok(fresh.known.find(name, sees))
    }

    /// The last look, or a new one if that is older than it may be.
    async fn look(&self, age: impl Fn(&Look) -> TimeDelta) -> Result<Look, StoreError> {
        let mut last = self.last.lock().await;
        let at = self.clock.now();
        if let Some(last) = &*last {
            // A clock that was set back makes nothing fresh.
            let since = at.signed_duration_since(last.at);
            if since >= TimeDelta::zero() && since < age(last) {
                return Ok(last.clone());
            }
        }
        let tx = self.store.fleet().await?;
        let known = Arc::new(Known::of(os_inside::offers(&tx).await?));
        let took = self.clock.now().signed_duration_since(at);
        let look = Look {
            at,
            absent_for: ABSENT_FOR.max(took * RATHER).min(COUNTS_FOR),
            known,
        };
        *last = Some(look.clone());
        Ok(look)
    }
}

impl Known {
    fn of(offers: Vec<Offer>) -> Self {
        let mut known = Self::default();
        let mut places: HashMap<Digest, BTreeMap<Place, HashSet<TenantId>>> = HashMap::new();
        for offer in offers {
            let Some((digest, place)) = place_of(&offer) else {
                continue;
            };
            let of_path = known.paths.entry(plain(&offer.file.path)).or_default();
            of_path.entry(digest).or_default().insert(offer.tenant);
            let of_file = places.entry(digest).or_default();
            of_file.entry(place).or_default().insert(offer.tenant);
        }
        for (digest, places) in places {
            let tenants = places.values().flatten().copied().collect();
            let places = places.into_keys().collect();
            let wanted = Arc::new(Wanted { digest, places });
            known.files.insert(digest, Named { wanted, tenants });
        }
        known
    }

    fn find(&self, name: &Name, sees: &Sees) -> Found {
        let is_seen = |tenants: &HashSet<TenantId>| tenants.iter().any(|one| sees.of(*one));
        let digest = match name {
            Name::Digest(digest) => *digest,
            Name::Path(path) => {
                let named = self.paths.get(path).into_iter().flatten();
                let mut theirs = named.filter(|(_, tenants)| is_seen(tenants));
                match (theirs.next(), theirs.next()) {
                    (None, _) => return Found::Nothing,
                    (Some(_), Some(_)) => return Found::Several,
                    (Some((digest, _)), None) => *digest,
                }
            }
        };
        match self.files.get(&digest) {
            Some(named) if is_seen(&named.tenants) => Found::One(Arc::clone(&named.wanted)),
            _ => Found::Nothing,
        }
    }
}

/// What an offer leads to; none without a digest: what nobody can check is not served.
pub(super) fn place_of(offer: &Offer) -> Option<(Digest, Place)> {
    let digest = Digest::from_hex(offer.file.sha256.as_ref()?.as_str()).ok()?;
    let place = Place {
        registry: offer.registry.clone(),
        at: offer.file.place.clone(),
        size: offer.file.size,
    };
    Some((digest, place))
}

/// A path as every client writes it in the end, whatever of it is escaped, without a slash before it.
pub(super) fn plain(path: &str) -> String {
    let path = path.trim_start_matches('/');
    match Url::parse(&format!("http://files/{path}")) {
        Ok(url) => url.path().trim_start_matches('/').to_owned(),
        Err(_) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::os::Sha256;
    use evenkeel_domain::os::catalogue::{File, FileRole};
    use uuid::Uuid;

    use super::*;

    const ONE: TenantId = TenantId::new(Uuid::from_u128(1));
    const TWO: TenantId = TenantId::new(Uuid::from_u128(2));

    fn offer(tenant: TenantId, path: &str, content: &str, registry: &str) -> Offer {
        let hex = Digest::of(content.as_bytes()).hex();
        Offer {
            tenant,
            registry: registry.to_owned(),
            file: File {
                role: FileRole::Image,
                path: path.to_owned(),
                place: format!("web:https://{registry}.example/{path}"),
                sha256: Some(Sha256::parse("sha256", &hex).expect("a digest")),
                size: None,
            },
        }
    }

    fn only(tenant: TenantId) -> Sees {
        Sees::Only(vec![tenant])
    }

    fn digest_of(found: &Found) -> Option<Digest> {
        match found {
            Found::One(wanted) => Some(wanted.digest),
            Found::Several | Found::Nothing => None,
        }
    }

    #[test]
    fn a_file_is_found_by_its_digest_and_by_its_path_in_projects_that_name_it() {
        let known = Known::of(vec![
            offer(ONE, "images/edge.raw", "edge", "release"),
            offer(TWO, "images/edge.raw", "other", "release"),
        ]);
        let edge = Digest::of(b"edge");
        for name in [
            Name::Digest(edge),
            Name::Path(plain("/images/edge.raw")),
            Name::Path(plain("//images/a/../edge.raw")),
        ] {
            assert_eq!(digest_of(&known.find(&name, &only(ONE))), Some(edge));
        }
        let by_digest = Name::Digest(edge);
        assert_eq!(known.find(&by_digest, &only(TWO)), Found::Nothing);
        let by_path = Name::Path("images/edge.raw".to_owned());
        assert_eq!(
            digest_of(&known.find(&by_path, &only(TWO))),
            Some(Digest::of(b"other"))
        );
        assert_eq!(known.find(&by_path, &Sees::All), Found::Several);
        let unknown = Name::Path("images".to_owned());
        assert_eq!(known.find(&unknown, &Sees::All), Found::Nothing);
    }

    #[test]
    fn a_file_may_be_had_from_every_place_that_somebody_names() {
        let known = Known::of(vec![
            offer(ONE, "edge.raw", "edge", "release"),
            offer(TWO, "edge.raw", "edge", "mirror"),
            offer(TWO, "edge.raw", "edge", "mirror"),
        ]);
        let name = Name::Digest(Digest::of(b"edge"));
        let Found::One(wanted) = known.find(&name, &only(ONE)) else {
            panic!("it is there");
        };
        let registries = wanted.places.iter().map(|place| place.registry.as_str());
        assert_eq!(registries.collect::<Vec<_>>(), ["mirror", "release"]);
    }

    #[test]
    fn what_has_no_digest_may_not_be_had() {
        let mut document = offer(ONE, "cves.json", "[]", "release");
        document.file.sha256 = None;
        let known = Known::of(vec![document]);
        let name = Name::Path("cves.json".to_owned());
        assert_eq!(known.find(&name, &Sees::All), Found::Nothing);
    }

    #[test]
    fn a_path_is_the_same_however_it_is_escaped() {
        assert_eq!(plain("/a b/c.raw"), plain("a%20b/c.raw"));
        assert_eq!(plain("a/../../etc/passwd"), "etc/passwd");
    }
}
