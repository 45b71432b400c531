//! Nodes with image slots, as the tests play them.

use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::target::Spec;
use evenkeel_proto::agent::*;

use crate::fleet::file_digest;
use crate::test_server::{TestNode, TestServer, enroll_request, facts};

/// An image of the profile `edge`, as a node reports it.
pub fn edge_image(version: &str) -> BootedImage {
    BootedImage { profile_name: "edge".into(), image_id: version.into() }
}

/// The facts of a node that has booted an image of the profile `edge`.
pub fn facts_after_boot(version: &str) -> Facts {
    let slot = |name: &str, state: &str, image_id: &str| ImageSlot {
        name: name.into(),
        state: state.into(),
        image_id: image_id.into(),
    };
    Facts {
        modules: vec!["image".into()],
        booted_image: Some(edge_image(version)),
        slots: vec![slot("a", "good", version), slot("b", "empty", "")],
        ..facts()
    }
}

/// The same facts after an image failed on the node.
pub fn with_failed_image(facts: Facts, version: &str, why: &str) -> Facts {
    let mut bad_images = facts.bad_images;
    bad_images.push(BadImage {
        sha256: file_digest("edge", version),
        image_id: version.into(),
        reason: why.into(),
    });
    Facts { bad_images, ..facts }
}

pub fn downloading_image(before: &str, target: &str) -> Kind {
    Kind::Downloading(Downloading {
        plan: Some(Plan {
            image: Some(ImageChange {
                profile_name: "edge".into(),
                before: before.into(),
                desired: target.into(),
            }),
            ..Plan::default()
        }),
    })
}

/// A node runs the new image.
pub fn finished_with(version: &str) -> Kind {
    Kind::Finished(Finished { booted_image_id: version.into(), ..Finished::default() })
}

/// A node has booted the previous image again.
pub fn reverted_to(version: &str) -> Kind {
    Kind::Reverted(Reverted {
        kind: FailureKind::Verify.into(),
        reason: "it never got healthy".into(),
        log: "web.service: failed".into(),
        booted_image_id: version.into(),
    })
}

/// The image that an answer offers; `None` if it offers none.
pub fn offered_image(answer: &PollResponse) -> Option<&Image> {
    let act = answer.decision.as_ref()?.act.as_ref()?;
    let target = match act {
        Act::Fetch(fetch) => fetch.target.as_ref(),
        Act::Apply(apply) => apply.target.as_ref(),
        Act::Idle(_) | Act::Continue(_) | Act::Cancel(_) => None,
    };
    match target?.spec.as_ref()? {
        Spec::Image(image) => Some(image),
        Spec::Packages(_) | Spec::Kernel(_) => None,
    }
}

impl TestServer {
    /// A node that has enrolled with an image of the catalogue and reported its facts.
    pub async fn image_node(&self, machine: u8, version: &str) -> TestNode {
        let token = self.join_token(false, true).await;
        let request = EnrollRequest {
            booted_image: Some(edge_image(version)),
            ..enroll_request(&token, machine.into(), machine)
        };
        let node =
            TestNode::from_enrolment(self.send_enroll_request(request).await.expect("enrolled"));
        self.report_facts(&node, facts_after_boot(version)).await;
        node
    }
}
