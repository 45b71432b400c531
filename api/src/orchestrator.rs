//! Features of the EIM platform that this server has.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Features of the EIM platform that this server has. EIM clients read this document before they
/// offer their commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OrchestratorInfo {
    /// Version of the format of this document.
    pub schema_version: String,
    /// Version and features of the server.
    pub orchestrator: Orchestrator,
}

/// Version and features of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orchestrator {
    /// Version of Evenkeel.
    pub version: String,
    /// Features.
    pub features: Features,
}

/// Features of the EIM platform.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Features {
    /// Edge Infrastructure Manager: the features that Evenkeel implements.
    pub edge_infrastructure_manager: EdgeInfrastructureManager,
    /// Projects.
    pub multitenancy: Feature,
    /// Application orchestration; never installed.
    pub application_orchestration: Feature,
    /// Cluster orchestration; never installed.
    pub cluster_orchestration: Feature,
    /// Observability of the orchestrator; never installed.
    pub orchestrator_observability: Feature,
    /// Observability of edge nodes; never installed.
    pub edgenode_observability: Feature,
}

/// Whether a feature is installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Feature {
    /// Whether the feature is installed.
    pub installed: bool,
}

/// Features of the Edge Infrastructure Manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EdgeInfrastructureManager {
    /// Whether the Edge Infrastructure Manager is installed.
    pub installed: bool,
    /// Day-2 operations: updates of nodes.
    pub day2: Feature,
    /// Registration and onboarding of hosts.
    pub onboarding: Feature,
    /// Operating systems, regions and sites.
    pub provisioning: Feature,
    /// Out-of-band management; never installed.
    pub oob: Feature,
    /// OXM installation profile; never installed.
    pub oxm_profile: Feature,
}

impl OrchestratorInfo {
    /// Features of Evenkeel in the given version.
    #[must_use]
    pub fn for_version(version: &str) -> Self {
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
