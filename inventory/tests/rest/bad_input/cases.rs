//! Requests that violate a rule of a resource or of a resource that they refer to.

use serde_json::Value;

use super::{BadInputFixture, CaseResults, describe_response};

/// Request, members that replace those of the valid body, and the expected status, code and field.
const CASES: &str = r#"
POST regions | {"name": 5} | 400 InvalidArgument name
POST regions | {"name": "a\tb"} | 400 InvalidArgument name
PUT regions/<region> | {"name": "a;b"} | 400 InvalidArgument name
PATCH regions/<region> | {"name": "a;b"} | 400 InvalidArgument name
POST regions | {"parentId": "region-XXXXXXXX"} | 400 InvalidArgument parentId
POST regions | {"parentId": "region-00000000"} | 400 FailedPrecondition parentId
POST regions | {"parentId": "<deep>"} | 400 FailedPrecondition parentId
PATCH regions/<region> | {"parentId": "<region>"} | 400 FailedPrecondition parentId
PATCH regions/<region> | {"parentId": "<deep>"} | 400 FailedPrecondition parentId
PUT regions/<region> | {"parentId": "<deep>"} | 400 FailedPrecondition parentId
PATCH regions/<region> | {"parentId": "<alone>"} | 400 FailedPrecondition parentId
PATCH regions/<region>?fieldMask= | {"name": "x"} | 400 InvalidArgument fieldMask
PATCH regions/<region>?fieldMask=colour | {"name": "x"} | 400 InvalidArgument fieldMask
PATCH regions/<region>?fieldMask=name&fieldMask=name | {"name": "x"} | 400 InvalidArgument fieldMask
DELETE regions/<region> | - | 400 FailedPrecondition -
GET regions?showTotalSites= | - | 400 InvalidArgument showTotalSites
PUT regions | {} | 405 Unimplemented -
POST regions | {"metadata": {"a": "b"}} | 400 InvalidArgument metadata
POST regions | {"metadata": [5]} | 400 InvalidArgument metadata[0]
POST regions | {"metadata": [{"key": "a", "value": "b", "x": 1}]} | 400 InvalidArgument metadata[0].x
POST regions | {"metadata": <101 labels>} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "<64>", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "<254>/a", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "a/<64>", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "-a", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "a_", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "/a", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "a/b/c", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "a1/b", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "\u0000", "value": ""}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "a", "value": "<64>"}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "a", "value": "b-"}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "a", "value": "b c"}]} | 400 InvalidArgument metadata
POST regions | {"metadata": [{"key": "a", "value": "\u0000"}]} | 400 InvalidArgument metadata
PUT regions/<region> | {"metadata": [{"key": "a", "value": "1"}, {"key": "a", "value": "1"}]} | 400 InvalidArgument metadata
PATCH sites/<site> | {"metadata": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]} | 400 InvalidArgument metadata
PUT compute/hosts/<host> | {"name": "half", "metadata": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]} | 400 InvalidArgument metadata

POST sites | {"name": "a;b"} | 400 InvalidArgument name
POST sites | {"regionId": "site-00000001"} | 400 InvalidArgument regionId
POST sites | {"regionId": "region-00000000"} | 400 FailedPrecondition regionId
PUT sites/<site> | {"regionId": "region-00000000"} | 400 FailedPrecondition regionId
PATCH sites/<site> | {"name": "half", "regionId": "region-00000000"} | 400 FailedPrecondition regionId
POST sites | {"siteLat": "48"} | 400 InvalidArgument siteLat
PATCH sites/<site> | {"name": "half", "siteLng": 1800000001} | 400 InvalidArgument siteLng
PATCH sites/<site>?fieldMask=site_lat | {"siteLat": 5} | 400 InvalidArgument fieldMask
DELETE sites/<site> | - | 400 FailedPrecondition -
GET locations?name=<1001>&showSites=true | - | 400 InvalidArgument name
GET locations?name=a&showSites= | - | 400 InvalidArgument showSites

POST compute/hosts | {"name": null} | 400 InvalidArgument name
PUT compute/hosts/<host> | {"name": null} | 400 InvalidArgument name
PATCH compute/hosts/<host> | {"siteId": "", "name": null} | 400 InvalidArgument name
PATCH compute/hosts/<host>?fieldMask=siteId,name | {"siteId": ""} | 400 InvalidArgument name
POST compute/hosts | {"uuid": "01234567-89ab-cdef-0123-456789abcdeg"} | 400 InvalidArgument uuid
POST compute/hosts | {"uuid": "0123456789abcdef0123456789abcdef"} | 400 InvalidArgument uuid
POST compute/hosts | {"uuid": "{01234567-89ab-cdef-0123-456789abcd}"} | 400 InvalidArgument uuid
POST compute/hosts | {"uuid": "01234567-89ab-cdef-0123-456789abcdef"} | 400 FailedPrecondition uuid
POST compute/hosts/register | {"serialNumber": "ABC1"} | 400 InvalidArgument serialNumber
POST compute/hosts/register | {"serialNumber": "<33>"} | 400 InvalidArgument serialNumber
POST compute/hosts/register | {"serialNumber": "ABC-12345"} | 400 InvalidArgument serialNumber
POST compute/hosts/register | {"serialNumber": "\u00c4BC12345"} | 400 InvalidArgument serialNumber
POST compute/hosts/register | {"serialNumber": "BARE12345"} | 400 FailedPrecondition serialNumber
POST compute/hosts/register | {"serialNumber": null} | 400 InvalidArgument uuid
POST compute/hosts/register | {"siteId": "region-00000001"} | 400 InvalidArgument siteId
POST compute/hosts/register | {"siteId": "site-00000000"} | 400 FailedPrecondition siteId
POST compute/hosts/register | {"userLvmSize": "60"} | 400 InvalidArgument userLvmSize
PATCH compute/hosts/<host>/register | {"name": "half", "autoOnboard": "yes"} | 400 InvalidArgument autoOnboard
PUT compute/hosts/<host> | {"name": "half", "siteId": "site-00000000"} | 400 FailedPrecondition siteId
PATCH compute/hosts/<host> | {"name": "half", "siteId": "site-00000000"} | 400 FailedPrecondition siteId
PATCH compute/hosts/<host>?fieldMask=name,colour | {"name": "half"} | 400 InvalidArgument fieldMask
DELETE compute/hosts/<host> | - | 400 FailedPrecondition -
GET compute/hosts/summary?filter= | - | 400 InvalidArgument filter

POST compute/instances | {"name": "a;b"} | 400 InvalidArgument name
POST compute/instances | {"hostID": null} | 400 InvalidArgument hostID
POST compute/instances | {"hostID": "host-XXXXXXXX"} | 400 InvalidArgument hostID
POST compute/instances | {"securityFeature": "STRONG"} | 400 InvalidArgument securityFeature
POST compute/instances | {"customConfigID": "ntp"} | 400 InvalidArgument customConfigID
POST compute/instances | {"osUpdatePolicyID": "osupdatepolicy-1"} | 400 InvalidArgument osUpdatePolicyID
POST compute/instances | {"osUpdatePolicyID": "<for images>"} | 400 InvalidArgument osUpdatePolicyID
POST compute/instances | {"osID": "<image>", "osUpdatePolicyID": "<policy>"} | 400 InvalidArgument osUpdatePolicyID
PUT compute/instances/<instance> | {"name": "half", "osUpdatePolicyID": "<for images>"} | 400 InvalidArgument osUpdatePolicyID
PATCH compute/instances/<instance> | {"name": "half", "osUpdatePolicyID": "<for images>"} | 400 InvalidArgument osUpdatePolicyID
PATCH compute/instances/<instance> | {"name": "half", "osID": "<image>"} | 400 InvalidArgument osID
PATCH compute/instances/<instance> | {"name": "half", "osUpdatePolicyID": "osupdatepolicy-00000000"} | 400 FailedPrecondition osUpdatePolicyID
PUT assignments/<instance> | {"osUpdatePolicyId": "<for images>"} | 400 InvalidArgument osUpdatePolicyId
PUT assignments/<site> | {"osUpdatePolicyId": "osupdatepolicy-00000000"} | 400 FailedPrecondition osUpdatePolicyId

POST compute/os | {"name": "a;b"} | 400 InvalidArgument name
POST compute/os | {"architecture": "x86 64"} | 400 InvalidArgument architecture
POST compute/os | {"profileName": "a;b"} | 400 InvalidArgument profileName
POST compute/os | {"imageId": "a&b"} | 400 InvalidArgument imageId
POST compute/os | {"imageUrl": "https://a/\"b"} | 400 InvalidArgument imageUrl
POST compute/os | {"repoUrl": "a\nb"} | 400 InvalidArgument repoUrl
POST compute/os | {"installedPackagesUrl": "a\nb"} | 400 InvalidArgument installedPackagesUrl
POST compute/os | {"existingCvesUrl": "a\nb"} | 400 InvalidArgument existingCvesUrl
POST compute/os | {"fixedCvesUrl": "a\nb"} | 400 InvalidArgument fixedCvesUrl
POST compute/os | {"description": "a[b]"} | 400 InvalidArgument description
POST compute/os | {"tlsCaCert": "a%b"} | 400 InvalidArgument tlsCaCert
POST compute/os | {"metadata": "ring 1"} | 400 InvalidArgument metadata
POST compute/os | {"metadata": "{\"a\": \"<501>\"}"} | 400 InvalidArgument metadata
POST compute/os | {"sha256": null} | 400 InvalidArgument sha256
POST compute/os | {"sha256": "<33>"} | 400 InvalidArgument sha256
POST compute/os | {"osType": null} | 400 InvalidArgument osType
POST compute/os | {"osProvider": "DELL"} | 400 InvalidArgument osProvider
POST compute/os | {"securityFeature": "STRONG"} | 400 InvalidArgument securityFeature
POST compute/os | {"imageSignatures": "a"} | 400 InvalidArgument imageSignatures
POST compute/os | {"imageSignatures": ["no signature"]} | 400 InvalidArgument imageSignatures
PUT compute/os/<image> | {"imageSignatures": ["<64>"]} | 400 InvalidArgument imageSignatures
PUT compute/os/<image> | {"architecture": "half", "imageSignatures": ["<64>:"]} | 400 InvalidArgument imageSignatures
PATCH compute/os/<image> | {"architecture": "half", "sha256": ""} | 400 InvalidArgument sha256
PATCH compute/os/<image> | {"sha256": "<64>"} | 400 InvalidArgument sha256
PATCH compute/os/<image>?fieldMask=sha256 | {"architecture": "half"} | 400 InvalidArgument fieldMask
PATCH compute/hosts/<host> | {"uuid": "01234567-89ab-cdef-0123-456789abcdef", "hostname": "half"} | 400 InvalidArgument hostname
PATCH compute/hosts/<host>/register | {"serialNumber": "XYZ98765"} | 400 InvalidArgument serialNumber
PATCH compute/instances/<instance> | {"instanceStatus": "half"} | 400 InvalidArgument instanceStatus
PATCH sites/<site> | {"timestamps": null} | 400 InvalidArgument timestamps
PATCH compute/os/<image> | {"architecture": "half", "imageSignatures": ["<64>:a b"]} | 400 InvalidArgument imageSignatures
PATCH compute/os/<image> | {"imageSignatures": ["<64>:<201>"]} | 400 InvalidArgument imageSignatures
PATCH compute/os/<image> | {"imageSignatures": <9 signatures>} | 400 InvalidArgument imageSignatures
POST compute/os | {"name": "Debian 12"} | 400 FailedPrecondition name
DELETE compute/os/<image> | - | 400 FailedPrecondition -

POST os-update-policies | {"name": "a;b"} | 400 InvalidArgument name
POST os-update-policies | {"description": "a\"b"} | 400 InvalidArgument description
POST os-update-policies | {"updatePolicy": "UPDATE_POLICY_UNSPECIFIED"} | 400 InvalidArgument updatePolicy
POST os-update-policies | {"updatePolicy": "NEWEST"} | 400 InvalidArgument updatePolicy
POST os-update-policies | {"updatePackages": "Curl"} | 400 InvalidArgument updatePackages
POST os-update-policies | {"updatePackages": "<129>"} | 400 InvalidArgument updatePackages
POST os-update-policies | {"updateSources": "deb"} | 400 InvalidArgument updateSources
POST os-update-policies | {"updateSources": ["a\tb"]} | 400 InvalidArgument updateSources
POST os-update-policies | {"updateSources": ["Types: deb\nURIs: https://x\nSuites: ./"]} | 400 InvalidArgument updateSources
POST os-update-policies | {"updateSources": ["deb http://x ./"]} | 400 InvalidArgument updateSources
POST os-update-policies | {"updateSources": ["Types: deb\nURIs: https://x\nSuites: ./\nSigned-By:\n -----BEGIN\n .\n x"]} | 400 InvalidArgument updateSources
POST os-update-policies | {"updateKernelCommand": "a:b"} | 400 InvalidArgument updateKernelCommand
POST os-update-policies | {"updateKernelCommand": "a`b"} | 400 InvalidArgument updateKernelCommand
POST os-update-policies | {"targetOsId": "os-1"} | 400 InvalidArgument targetOsId
POST os-update-policies | {"targetOsId": "<image>"} | 400 InvalidArgument targetOsId
POST os-update-policies | {"targetOsId": "<image>", "updatePackages": null, "updateSources": ["Types: deb\nURIs: https://x\nSuites: ./\nSigned-By: /k"]} | 400 InvalidArgument targetOsId
POST os-update-policies | {"targetOsId": "os-00000000", "updatePackages": null} | 400 FailedPrecondition targetOsId
POST os-update-policies | {"updatePackages": null} | 400 InvalidArgument updatePolicy
POST os-update-policies | {"updatePolicy": "UPDATE_POLICY_LATEST"} | 400 InvalidArgument updatePolicy
POST os-update-policies | {"updatePolicy": "UPDATE_POLICY_LATEST", "updatePackages": null, "targetOsId": "<image>"} | 400 InvalidArgument updatePolicy
POST os-update-policies | {"updatePolicy": "UPDATE_POLICY_LATEST", "updatePackages": null, "updateSources": ["a"]} | 400 InvalidArgument updatePolicy
POST os-update-policies | {"updatePolicy": "UPDATE_POLICY_LATEST", "updatePackages": null, "updateKernelCommand": "quiet"} | 400 InvalidArgument updatePolicy
POST os-update-policies | {"packageRules": {"x": 1}} | 400 InvalidArgument packageRules.x
POST os-update-policies | {"imageRules": {"x": 1}} | 400 InvalidArgument imageRules.x
POST os-update-policies | {"imageRules": "slow"} | 400 InvalidArgument imageRules
POST os-update-policies | {"imageRules": {"attempts": -1}} | 400 InvalidArgument imageRules.attempts
POST os-update-policies | {"imageRules": {"maxBytes": "1G"}} | 400 InvalidArgument imageRules.maxBytes
POST os-update-policies | {"imageRules": {"attempts": 3}} | 400 InvalidArgument imageRules
POST os-update-policies | {"updatePolicy": "UPDATE_POLICY_LATEST", "updatePackages": null, "imageRules": {"attempts": 101}} | 400 InvalidArgument imageRules.attempts
POST os-update-policies | {"targetOsId": "<image>", "updatePackages": null, "imageRules": {"maxBytes": 1048575}} | 400 InvalidArgument imageRules.maxBytes
POST os-update-policies | {"targetOsId": "<image>", "updatePackages": null, "imageRules": {"downloadBytesPerSecond": 1}} | 400 InvalidArgument imageRules.downloadBytesPerSecond
DELETE os-update-policies/<policy> | - | 400 FailedPrecondition -
PUT os-update-policies/<policy> | {} | 405 Unimplemented -
PATCH os-update-policies/<policy> | {"name": "x"} | 405 Unimplemented -
POST os-update-runs | {} | 405 Unimplemented -
PATCH os-update-runs/<run> | {"name": "x"} | 405 Unimplemented -

POST schedules/single | {"name": "a;b"} | 400 InvalidArgument name
POST schedules/single | {"scheduleStatus": null} | 400 InvalidArgument scheduleStatus
POST schedules/single | {"startSeconds": null} | 400 InvalidArgument startSeconds
POST schedules/single | {"startSeconds": 4294967296} | 400 InvalidArgument startSeconds
POST schedules/single | {"startSeconds": "60"} | 400 InvalidArgument startSeconds
POST schedules/single | {"endSeconds": 4294967296} | 400 InvalidArgument endSeconds
POST schedules/single | {"endSeconds": 1} | 400 InvalidArgument endSeconds
POST schedules/single | {"targetHostId": "host-00000000"} | 400 FailedPrecondition targetHostId
POST schedules/single | {"targetSiteId": "site-00000000"} | 400 FailedPrecondition targetSiteId
POST schedules/single | {"targetRegionId": "region-00000000"} | 400 FailedPrecondition targetRegionId
POST schedules/single | {"targetHostId": "<host>", "targetSiteId": "<site>"} | 400 InvalidArgument targetSiteId
POST schedules/single | {"targetHostId": "<host>", "targetRegionId": "<region>"} | 400 InvalidArgument targetRegionId
PUT schedules/single/<single> | {} | 400 InvalidArgument scheduleStatus
PATCH schedules/single/<single> | {"name": "half", "startSeconds": 1} | 400 InvalidArgument startSeconds
PATCH schedules/single/<single> | {"name": "half", "targetSiteId": "<site>"} | 400 InvalidArgument targetSiteId
POST schedules/repeated | {"cronMinutes": "*/0"} | 400 InvalidArgument cronMinutes
POST schedules/repeated | {"cronMinutes": "1,,2"} | 400 InvalidArgument cronMinutes
POST schedules/repeated | {"cronMinutes": "<201>"} | 400 InvalidArgument cronMinutes
POST schedules/repeated | {"cronHours": "24"} | 400 InvalidArgument cronHours
POST schedules/repeated | {"cronDayMonth": "32"} | 400 InvalidArgument cronDayMonth
POST schedules/repeated | {"cronMonth": "13"} | 400 InvalidArgument cronMonth
POST schedules/repeated | {"cronDayWeek": "sunday"} | 400 InvalidArgument cronDayWeek
POST schedules/repeated | {"cronHours": 5} | 400 InvalidArgument cronHours
POST schedules/repeated | {"durationSeconds": "60"} | 400 InvalidArgument durationSeconds
POST schedules/repeated | {"targetSiteId": "site-00000000"} | 400 FailedPrecondition targetSiteId
POST schedules/repeated | {"targetHostId": "<host>", "targetRegionId": "<region>"} | 400 InvalidArgument targetRegionId
PATCH schedules/repeated/<repeated> | {"name": "half", "cronHours": "x"} | 400 InvalidArgument cronHours
GET compute/schedules?hostId= | - | 400 InvalidArgument hostId
GET schedules/single?siteId= | - | 400 InvalidArgument siteId
GET schedules/repeated?regionId= | - | 400 InvalidArgument regionId
GET compute/schedules?unixEpoch= | - | 400 InvalidArgument unixEpoch
GET compute/schedules?hostId=host-1 | - | 400 InvalidArgument hostId

POST providers | {"name": "a;b"} | 400 InvalidArgument name
POST providers | {"name": "first"} | 400 FailedPrecondition name
POST providers | {"providerKind": "PROVIDER_KIND_UNSPECIFIED"} | 400 InvalidArgument providerKind
POST providers | {"providerVendor": "DELL"} | 400 InvalidArgument providerVendor
POST providers | {"apiEndpoint": ""} | 400 InvalidArgument apiEndpoint
POST providers | {"apiEndpoint": null} | 400 InvalidArgument apiEndpoint
POST providers | {"apiEndpoint": "a\"b"} | 400 InvalidArgument apiEndpoint
POST providers | {"apiCredentials": "a"} | 400 InvalidArgument apiCredentials
POST providers | {"apiCredentials": ["<501>"]} | 400 InvalidArgument apiCredentials
POST customConfigs | {"name": "<33>"} | 400 InvalidArgument name
POST customConfigs | {"name": "a_b"} | 400 InvalidArgument name
POST customConfigs | {"name": "first"} | 400 FailedPrecondition name
POST customConfigs | {"description": "a\nb"} | 400 InvalidArgument description
POST customConfigs | {"config": null} | 400 InvalidArgument config
POST localAccounts | {"username": "<33>"} | 400 InvalidArgument username
POST localAccounts | {"username": "Ann"} | 400 InvalidArgument username
POST localAccounts | {"username": "first"} | 400 FailedPrecondition username
POST localAccounts | {"sshKey": "ssh-ed25519"} | 400 InvalidArgument sshKey
POST localAccounts | {"sshKey": "ecdsa-sha2-nistp256 AAAA"} | 400 InvalidArgument sshKey

GET computers | - | 404 NotFound -
GET compute/hosts/<host>/colour | - | 404 NotFound -
"#;

#[tokio::test]
async fn a_broken_rule_is_rejected_with_its_code_and_its_field() {
    let fixture = BadInputFixture::new().await;
    let mut results = CaseResults::default();
    for case in CASES.lines().filter(|line| !line.is_empty()) {
        let columns: Vec<&str> = case.split(" | ").collect();
        let [what, members, expected] = columns.as_slice() else {
            panic!("this is not a case: {case}");
        };
        let body = (*members != "-").then(|| {
            let members: Value =
                serde_json::from_str(&fixture.fill_placeholders(members)).expect("JSON");
            fixture.body_with(what, &members)
        });
        let answer = fixture.server.request(&fixture.fill_placeholders(what), body).await;
        results.check(case, &describe_response(&answer), expected, &answer.1);
    }
    results.assert_all_passed(150);
    fixture.assert_unchanged().await;
}
