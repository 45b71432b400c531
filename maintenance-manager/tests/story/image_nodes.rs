//! Nodes with slots for images, as the stories play them.

use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::target::Wish;
use evenkeel_proto::agent::*;

use crate::fleet::file_of;
use crate::house::{House, TestNode, arrival, facts};

/// An image of the profile `edge`, as a node names it.
pub fn edge(version: &str) -> BootedImage {
    BootedImage {
        profile_name: "edge".into(),
        image_id: version.into(),
    }
}

/// What a node says that has booted an image of the profile `edge`.
pub fn booted(version: &str) -> Facts {
    let slot = |name: &str, state: &str, image_id: &str| ImageSlot {
        name: name.into(),
        state: state.into(),
        image_id: image_id.into(),
    };
    Facts {
        modules: vec!["image".into()],
        booted_image: Some(edge(version)),
        slots: vec![slot("a", "good", version), slot("b", "empty", "")],
        ..facts()
    }
}

/// The same, of a node on which an image failed.
pub fn failed_on(facts: Facts, version: &str, why: &str) -> Facts {
    let mut bad_images = facts.bad_images;
    bad_images.push(BadImage {
        sha256: file_of("edge", version),
        image_id: version.into(),
        why: why.into(),
    });
    Facts {
        bad_images,
        ..facts
    }
}

/// A node fetches an image.
pub fn fetching(before: &str, wanted: &str) -> News {
    News::Downloading(Downloading {
        plan: Some(Plan {
            image: Some(ImageChange {
                profile_name: "edge".into(),
                before: before.into(),
                wanted: wanted.into(),
            }),
            ..Plan::default()
        }),
    })
}

/// A node runs the image that it was sent to.
pub fn finished_with(version: &str) -> News {
    News::Finished(Finished {
        booted_image_id: version.into(),
        ..Finished::default()
    })
}

/// A node has come back to the image from before.
pub fn fell_back_to(version: &str) -> News {
    News::Reverted(Reverted {
        kind: FailureKind::Verify.into(),
        reason: "it never got healthy".into(),
        log: "web.service: failed".into(),
        booted_image_id: version.into(),
    })
}

/// The image that an answer sends a node to; none if it sends it to none.
pub fn sent_to(answer: &PollResponse) -> Option<&Image> {
    let act = answer.decision.as_ref()?.act.as_ref()?;
    let target = match act {
        Act::Fetch(fetch) => fetch.target.as_ref(),
        Act::Apply(apply) => apply.target.as_ref(),
        Act::Idle(_) | Act::Continue(_) | Act::Cancel(_) => None,
    };
    match target?.wish.as_ref()? {
        Wish::Image(image) => Some(image),
        Wish::Packages(_) | Wish::Kernel(_) => None,
    }
}

impl House {
    /// A node that has come with an image of the catalogue and said its facts.
    pub async fn image_node(&self, machine: u8, version: &str) -> TestNode {
        let token = self.join_token(false, true).await;
        let request = EnrollRequest {
            booted_image: Some(edge(version)),
            ..arrival(&token, machine.into(), machine)
        };
        let node = TestNode::of(self.arrives(request).await.expect("enrolled"));
        self.tell(&node, booted(version)).await;
        node
    }
}
