//! What the agent tells of the node, and how often.

use evenkeel_update_agent::facts::{Facts, WithheldCause};

use crate::support::node::Node;

fn facts(node: &Node) -> Facts {
    node.server().facts.clone().unwrap()
}

#[tokio::test]
async fn the_list_of_packages_is_told_once_for_each_change_of_it() {
    let node = Node::new();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let told = node.server().packages.clone().unwrap();
    assert_eq!(
        told,
        "{\"repo\":[{\"name\":\"app\",\"version\":\"1\",\"architecture\":\"all\"},\
         {\"name\":\"lib\",\"version\":\"1\",\"architecture\":\"all\"}]}"
    );
    assert_eq!(node.server().lists, 1);

    let newer = ("1.5".to_owned(), "installed".to_owned());
    node.packages().installed.insert("lib".into(), newer);
    std::fs::write(node.place().inside("/var/lib/dpkg/status"), "new").unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(node.server().lists, 2);
    let told = node.server().packages.clone().unwrap();
    assert!(told.contains("\"1.5\""), "{told}");
}

#[tokio::test]
async fn a_server_that_knows_the_list_from_another_node_is_not_told_it() {
    let node = Node::new();
    node.run_once().await.unwrap();
    assert_eq!(node.server().lists, 1);
    node.run_once().await.unwrap();
    assert_eq!(node.server().lists, 1, "after a start too");
}

#[tokio::test]
async fn a_list_that_changed_between_the_facts_and_the_question_waits_for_new_facts() {
    let node = Node::new();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    let lists = node.server().lists;
    // The file that tells of it is not written yet.
    let newer = ("1.5".to_owned(), "installed".to_owned());
    node.packages().installed.insert("lib".into(), newer);
    node.server().packages = None;
    agent.run_once().await.unwrap();
    assert_eq!(node.server().lists, lists, "it would have another digest");
    std::fs::write(node.place().inside("/var/lib/dpkg/status"), "new").unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(node.server().lists, lists + 1);
}

#[tokio::test]
async fn packages_that_stay_old_are_told_with_the_cause() {
    let node = Node::new();
    node.packages().held.insert("app".into());
    node.packages().kept_back.insert("lib".into());
    node.run_once().await.unwrap();
    let facts = facts(&node);
    assert!(facts.available.is_empty());
    let seen: Vec<_> = facts
        .withheld
        .iter()
        .map(|one| {
            (
                one.name.as_str(),
                one.installed.as_str(),
                one.available.as_str(),
                one.cause,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("app", "1", "2", WithheldCause::Hold),
            ("lib", "1", "2", WithheldCause::KeptBack)
        ]
    );
}

#[tokio::test]
async fn why_a_reboot_is_required_is_told() {
    let node = Node::new();
    std::fs::create_dir_all(node.place().inside("/run")).unwrap();
    std::fs::write(node.place().inside("/run/reboot-required"), "").unwrap();
    std::fs::write(node.place().inside("/run/reboot-required.pkgs"), "app\n").unwrap();
    node.run_once().await.unwrap();
    let facts = facts(&node);
    assert!(facts.reboot_required);
    assert_eq!(facts.reboot_reasons, ["app asks for it"]);
    assert!(
        facts.stale_services.is_empty(),
        "this system's processes are not the node's"
    );
}

#[tokio::test]
async fn a_node_that_cannot_be_looked_at_is_heard_all_the_same() {
    const WHY: &str = "dpkg-query: error: parsing file '/var/lib/dpkg/status' near line 0:\n end of file after field name 'garbage'";
    let node = Node::new();
    node.packages().list_error = WHY.into();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    let told = facts(&node);
    assert!(!told.boot_id.is_empty());
    let [trouble] = told.troubles.as_slice() else {
        panic!("{:?}", told.troubles)
    };
    assert!(trouble.contains(&WHY.replace('\n', "")), "{trouble}");

    node.packages().list_error.clear();
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let told = facts(&node);
    assert_eq!(told.troubles, [""; 0]);
    assert!(!told.installed_digest.is_empty());
}
