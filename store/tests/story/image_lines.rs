//! Lines of images, and what their nodes show when one changes.

use evenkeel_domain::id::{InstanceId, OsId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::os::{OsKind, OsSpec};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::image_lines::{self, Followed, Line};
use evenkeel_store::nodes::Machine;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, nodes, os_profiles, projects};
use futures_util::future::join;

use crate::house::{NOON, bookworm, by_hand, node, project};
use crate::os_inside::somebody_waits;

/// An image of a line.
async fn image(store: &Store, tenant: TenantId, line: &str, version: &str) -> OsId {
    let architecture = bookworm().architecture;
    image_for(store, tenant, (line, version), &architecture).await
}

/// The same for machines of an architecture.
async fn image_for(
    store: &Store,
    tenant: TenantId,
    (line, version): (&str, &str),
    architecture: &str,
) -> OsId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = OsSpec {
        kind: OsKind::Immutable,
        name: format!("{line} {version}"),
        architecture: architecture.to_owned(),
        profile_name: line.to_owned(),
        image_id: version.to_owned(),
        ..bookworm()
    };
    let made = os_profiles::create(&tx, &spec, NOON).await.expect("made");
    tx.commit().await.expect("committed");
    made.id
}

/// A node that runs an image.
async fn runs(store: &Store, tenant: TenantId, n: u128, os: OsId) -> Instance {
    let (_, instance) = node(store, tenant, n).await;
    let moved = format!(
        "UPDATE node_states SET os_id = {} WHERE tenant_id = '{tenant}' AND instance_id = {}",
        os.bits().cast_signed(),
        instance.id.bits().cast_signed()
    );
    by_hand(store, &moved).await;
    instance
}

async fn behind(store: &Store) -> Vec<Line> {
    let tx = store.fleet().await.expect("a transaction");
    image_lines::behind(&tx, 100).await.expect("the lines")
}

/// The only line that is behind.
async fn the_line(store: &Store) -> Line {
    let lines = behind(store).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].clone()
}

async fn follow(
    store: &Store,
    line: &Line,
    after: Option<InstanceId>,
    limit: u32,
) -> Option<Followed> {
    let tx = store.tenant(line.tenant).await.expect("a transaction");
    let followed = image_lines::follow(&tx, line, after, limit).await;
    tx.commit().await.expect("committed");
    followed.expect("followed")
}

async fn done(store: &Store, line: &Line) -> bool {
    let tx = store.tenant(line.tenant).await.expect("a transaction");
    let done = image_lines::done(&tx, line).await.expect("noted");
    tx.commit().await.expect("committed");
    done
}

/// Follows whatever is behind to its end. Says for how many nodes something else was newest.
async fn follow_all(store: &Store) -> u64 {
    let mut changed = 0;
    for line in behind(store).await {
        let followed = follow(store, &line, None, 100).await.expect("alone");
        assert_eq!(followed.last, None, "there are fewer");
        changed += followed.changed;
        assert!(done(store, &line).await);
    }
    changed
}

async fn shown(store: &Store, tenant: TenantId, instance: &Instance) -> String {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let node = nodes::find(&tx, instance.id).await.expect("a node");
    let briefs = nodes::briefs(&tx, &[Machine::Host(instance.host)]).await;
    let brief = briefs.expect("read").pop().expect("an answer");
    let (_, brief) = brief.expect("it makes sense").expect("it is there");
    let digest = nodes::digest_of(&node.os_update_available);
    assert_eq!(brief.available_digest, digest);
    node.os_update_available
}

#[tokio::test]
async fn a_newer_image_is_shown_by_all_nodes_of_its_line_and_an_older_one_by_none() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let edge = image(&store, tenant, "edge", "3.0.9").await;
    let other = image(&store, tenant, "other", "3.0.9").await;
    let mut edges = Vec::new();
    for n in 1..=5 {
        edges.push(runs(&store, tenant, n, edge).await);
    }
    let apart = runs(&store, tenant, 6, other).await;
    let (_, of_packages) = node(&store, tenant, 7).await;
    assert_eq!(follow_all(&store).await, 0);

    image(&store, tenant, "edge", "3.0.10").await;
    assert_eq!(follow_all(&store).await, 5);
    for instance in &edges {
        assert_eq!(shown(&store, tenant, instance).await, "edge 3.0.10");
    }
    assert_eq!(shown(&store, tenant, &apart).await, "");
    assert_eq!(shown(&store, tenant, &of_packages).await, "");

    // By numbers: one between the two is not the newest, and one that is older than all is none at all.
    for older in ["3.0.9.1", "3.0.8", "2.0"] {
        image(&store, tenant, "edge", older).await;
        assert_eq!(behind(&store).await.len(), 1, "{older}");
        assert_eq!(follow_all(&store).await, 0, "{older}");
    }
    assert_eq!(shown(&store, tenant, &edges[0]).await, "edge 3.0.10");
}

#[tokio::test]
async fn each_node_is_shown_the_newest_image_that_is_made_for_it() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut nodes = Vec::new();
    for (n, version, architecture) in [(1, "1", "x86_64"), (2, "1.1", "arm64"), (3, "1.2", "")] {
        let os = image_for(&store, tenant, ("edge", version), architecture).await;
        nodes.push(runs(&store, tenant, n, os).await);
    }
    let told = async || {
        follow_all(&store).await;
        let mut told = Vec::new();
        for instance in &nodes {
            told.push(shown(&store, tenant, instance).await);
        }
        told
    };
    // What is for no architecture fits all of them.
    assert_eq!(told().await, ["edge 1.2", "edge 1.2", ""]);
    image_for(&store, tenant, ("edge", "2"), "amd64").await;
    image_for(&store, tenant, ("edge", "3"), "aarch64").await;
    assert_eq!(told().await, ["edge 2", "edge 3", "edge 3"]);
}

#[tokio::test]
async fn an_image_that_turns_out_to_be_for_other_machines_is_not_shown_any_more() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let old = image(&store, tenant, "edge", "1").await;
    let new = image(&store, tenant, "edge", "2").await;
    let instance = runs(&store, tenant, 1, old).await;
    assert_eq!(follow_all(&store).await, 1);
    for (architecture, changed, newest) in [("arm64", 1, ""), ("arm64", 0, ""), ("", 1, "edge 2")] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut spec = os_profiles::find(&tx, new).await.expect("an image").spec;
        let is_another = spec.architecture != architecture;
        spec.architecture = architecture.to_owned();
        let said = os_profiles::change(&tx, new, &spec, NOON).await;
        tx.commit().await.expect("committed");
        said.expect("changed");
        assert_eq!(behind(&store).await.len(), usize::from(is_another));
        assert_eq!(follow_all(&store).await, changed, "{architecture}");
        assert_eq!(shown(&store, tenant, &instance).await, newest);
    }
}

#[tokio::test]
async fn nodes_of_a_line_are_told_a_few_at_a_time() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let old = image(&store, tenant, "edge", "1").await;
    let mut nodes = Vec::new();
    for n in 1..=5 {
        nodes.push(runs(&store, tenant, n, old).await);
    }
    nodes.sort_by_key(|instance| instance.id.bits().cast_signed());
    image(&store, tenant, "edge", "2").await;
    let line = the_line(&store).await;
    let (mut after, mut pieces) = (None, Vec::new());
    loop {
        let followed = follow(&store, &line, after, 2).await.expect("alone");
        pieces.push((followed.looked, followed.changed));
        after = followed.last;
        if after.is_none() {
            break;
        }
        let told = nodes[..pieces.len() * 2].last().map(|node| node.id);
        assert_eq!(after, told, "in the order of the database");
    }
    assert_eq!(pieces, [(2, 2), (2, 2), (1, 1)]);
    assert_eq!(behind(&store).await.len(), 1, "nobody said that it is done");
    // What is true already is not written again.
    let again = follow(&store, &line, None, 5).await.expect("alone");
    assert_eq!((again.looked, again.changed), (5, 0));
    let rest = follow(&store, &line, again.last, 5).await.expect("alone");
    assert_eq!((rest.looked, rest.changed, rest.last), (0, 0, None));
    assert!(done(&store, &line).await);
    assert!(!done(&store, &line).await, "no news");
    assert_eq!(behind(&store).await, []);
}

#[tokio::test]
async fn a_line_that_changes_while_it_is_followed_is_behind_again() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let old = image(&store, tenant, "edge", "1").await;
    let instance = runs(&store, tenant, 1, old).await;
    let first = the_line(&store).await;
    follow(&store, &first, None, 100).await.expect("alone");
    image(&store, tenant, "edge", "2").await;
    assert!(done(&store, &first).await);
    let second = the_line(&store).await;
    assert!(second.changed > first.changed);
    assert!(!done(&store, &first).await, "that was before");
    assert_eq!(follow_all(&store).await, 1);
    assert_eq!(shown(&store, tenant, &instance).await, "edge 2");
    assert_eq!(behind(&store).await, []);
}

#[tokio::test]
async fn of_two_replicas_one_follows_a_line_and_the_other_one_another() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    image(&store, tenant, "edge", "1").await;
    image(&store, tenant, "other", "1").await;
    let theirs = project(&store, "theirs").await;
    image(&store, theirs, "edge", "1").await;
    let lines = behind(&store).await;
    assert_eq!(lines.len(), 3);
    let (taken, free): (Vec<_>, Vec<_>) = lines
        .into_iter()
        .partition(|line| line.tenant == tenant && line.profile_name == "edge");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let first = image_lines::follow(&tx, &taken[0], None, 100).await;
    assert!(first.expect("followed").is_some());
    assert_eq!(follow(&store, &taken[0], None, 100).await, None);
    for line in &free {
        assert!(follow(&store, line, None, 100).await.is_some(), "{line:?}");
    }
    tx.commit().await.expect("committed");
    assert!(follow(&store, &taken[0], None, 100).await.is_some());
}

#[tokio::test]
async fn an_image_that_goes_is_not_shown_any_more() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let old = image(&store, tenant, "edge", "1").await;
    let new = image(&store, tenant, "edge", "2").await;
    let lonely = image(&store, tenant, "other", "1").await;
    let instance = runs(&store, tenant, 1, old).await;
    assert_eq!(follow_all(&store).await, 1);
    let delete = async |os| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        os_profiles::delete(&tx, os).await.expect("deleted");
        tx.commit().await.expect("committed");
    };
    delete(new).await;
    assert_eq!(follow_all(&store).await, 1);
    assert_eq!(shown(&store, tenant, &instance).await, "");
    // The last one of a line, which nobody runs.
    delete(lonely).await;
    assert_eq!(the_line(&store).await.profile_name, "other");
    assert_eq!(follow_all(&store).await, 0);
    assert_eq!(behind(&store).await, []);
}

#[tokio::test]
async fn what_is_updated_by_packages_is_no_line() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    node(&store, tenant, 1).await;
    assert_eq!(behind(&store).await, []);
}

#[tokio::test]
async fn lines_of_a_project_go_with_it() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    for tenant in [ours, theirs] {
        let os = image(&store, tenant, "edge", "1").await;
        runs(&store, tenant, 1, os).await;
    }
    follow_all(&store).await;
    image(&store, ours, "edge", "2").await;
    let line = the_line(&store).await;
    let tx = store.fleet().await.expect("a transaction");
    projects::delete(&tx, ours, true).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(behind(&store).await, []);
    // Whoever had found it before has nothing to do.
    let followed = follow(&store, &line, None, 100).await.expect("alone");
    assert_eq!((followed.looked, followed.last), (0, None));
    assert!(!done(&store, &line).await);
    image(&store, theirs, "edge", "2").await;
    assert_eq!(follow_all(&store).await, 1, "the other project stays");
}

#[tokio::test]
async fn what_a_node_shows_is_judged_when_its_row_is_free() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let old = image(&store, tenant, "edge", "1").await;
    let instance = runs(&store, tenant, 1, old).await;
    image(&store, tenant, "edge", "2").await;
    assert_eq!(follow_all(&store).await, 1);
    image(&store, tenant, "edge", "1.5").await;
    let line = the_line(&store).await;

    // Somebody judged by images as they were long ago, and writes it while the line is followed.
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, instance.host).await.expect("locked");
    node.os_update_available = "edge 1.5".to_owned();
    nodes::save(&tx, &node).await.expect("saved");
    let written = async {
        somebody_waits(&store).await;
        tx.commit().await.expect("committed");
    };
    let (followed, ()) = join(follow(&store, &line, None, 100), written).await;
    assert_eq!(followed.expect("alone").changed, 1);
    assert_eq!(shown(&store, tenant, &instance).await, "edge 2");
}
