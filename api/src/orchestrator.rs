//! Which parts of the ancestor's platform are there.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which parts of the ancestor's platform are there. Its clients ask before they offer their commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OrchestratorInfo {
    /// The version of this document's form.
    pub schema_version: String,
    /// What there is.
    pub orchestrator: Orchestrator,
}

/// The version and the parts that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orchestrator {
    /// The version of Evenkeel.
    pub version: String,
    /// The parts.
    pub features: Features,
}

/// The parts of the ancestor's platform.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Features {
    /// What Evenkeel is.
    pub edge_infrastructure_manager: EdgeInfrastructureManager,
    /// Projects.
    pub multitenancy: Feature,
    /// Not here.
    pub application_orchestration: Feature,
    /// Not here.
    pub cluster_orchestration: Feature,
    /// Not here.
    pub orchestrator_observability: Feature,
    /// Not here.
    pub edgenode_observability: Feature,
}

/// Whether a part is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Feature {
    /// Whether it is.
    pub installed: bool,
}

/// The parts of the infrastructure manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EdgeInfrastructureManager {
    /// Whether it is there at all.
    pub installed: bool,
    /// Keeping nodes up to date.
    pub day2: Feature,
    /// Registering hosts.
    pub onboarding: Feature,
    /// Operating systems, regions, sites.
    pub provisioning: Feature,
    /// Out-of-band management.
    pub oob: Feature,
    /// A special form of installation.
    pub oxm_profile: Feature,
}

impl OrchestratorInfo {
    /// What Evenkeel of this version has.
    #[must_use]
    pub fn of_version(version: &str) -> Self {
        let here = || Feature { installed: true };
        Self {
            schema_version: "1.0".to_owned(),
            orchestrator: Orchestrator {
                version: version.to_owned(),
                features: Features {
                    edge_infrastructure_manager: EdgeInfrastructureManager {
                        installed: true,
                        day2: here(),
                        onboarding: here(),
                        provisioning: here(),
                        ..EdgeInfrastructureManager::default()
                    },
                    multitenancy: here(),
                    ..Features::default()
                },
            },
        }
    }
}
