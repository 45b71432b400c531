//! The example of the manual.

use std::fs;

use super::{Secrets, assigned, bind_with, facts, lost_lines};
use crate::binding::ChainTarget;
use crate::native;

#[test]
fn the_profiles_of_the_manual_become_the_document_of_the_manual() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/node-configuration.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("\n## How profiles become one document\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let blocks: Vec<&str> =
        section.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [web, berlin, expected] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    let profiles =
        [assigned(ChainTarget::Project, "web", web), assigned(ChainTarget::Site, "berlin", berlin)];
    let bound = bind_with(&profiles, &facts(&[("host.name", "edge-7")]), &Secrets::new());
    let expected = native::read(expected).unwrap();
    assert_eq!(native::write(&bound.document), native::write(&expected));
    let lost = "File /etc/nginx/conf.d/default.conf";
    assert_eq!(lost_lines(&bound), [format!("{lost} of web lost to {lost} of berlin")]);
    assert!(bound.failed.is_empty() && bound.warnings.is_empty());
}
