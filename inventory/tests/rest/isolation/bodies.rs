//! Bodies that refer to resources of another project.

use serde_json::{Value, json};

use super::attack_context::AttackContext;
use crate::test_server::ResourceIds;

/// Request, referring field, and the id in it.
pub type Reference = (String, &'static str, String);

/// Every field of a body that can refer to a resource of another project.
pub fn references(own: &ResourceIds, other: &ResourceIds) -> Vec<Reference> {
    let mut all = location_references(own, other);
    all.extend(instance_references(own, other));
    all.extend(schedule_references(own, other));
    all.extend(policy_references(own, other));
    all
}

fn reference(what: impl Into<String>, field: &'static str, id: &str) -> Reference {
    (what.into(), field, id.to_owned())
}

fn location_references(own: &ResourceIds, other: &ResourceIds) -> Vec<Reference> {
    let mut all = vec![
        reference("POST regions", "parentId", &other.region),
        reference("POST sites", "regionId", &other.region),
        reference("POST compute/hosts", "siteId", &other.site),
        reference("POST compute/hosts/register", "siteId", &other.site),
    ];
    for method in ["PUT", "PATCH"] {
        let (region, site, host) = (&own.region, &own.site, &own.host);
        let inside = format!("{method} regions/{region}");
        all.push(reference(inside, "parentId", &other.region));
        let within = format!("{method} sites/{site}");
        all.push(reference(within, "regionId", &other.region));
        let at = format!("{method} compute/hosts/{host}");
        all.push(reference(at, "siteId", &other.site));
    }
    all
}

fn instance_references(own: &ResourceIds, other: &ResourceIds) -> Vec<Reference> {
    let mut all = Vec::new();
    let instance = format!("compute/instances/{}", own.instance);
    for (field, id) in [
        ("hostID", &other.host),
        ("osID", &other.os),
        ("osUpdatePolicyID", &other.policy),
        ("localAccountID", &other.account),
        ("customConfigID", &other.config),
    ] {
        all.push(reference("POST compute/instances", field, id));
        all.push(reference(format!("PUT {instance}"), field, id));
        all.push(reference(format!("PATCH {instance}"), field, id));
    }
    all
}

fn schedule_references(own: &ResourceIds, other: &ResourceIds) -> Vec<Reference> {
    let mut all = Vec::new();
    for (field, id) in [
        ("targetHostId", &other.host),
        ("targetSiteId", &other.site),
        ("targetRegionId", &other.region),
    ] {
        for (list, resource) in
            [("schedules/single", &own.schedule), ("schedules/repeated", &own.repeated)]
        {
            all.push(reference(format!("POST {list}"), field, id));
            all.push(reference(format!("PUT {list}/{resource}"), field, id));
            all.push(reference(format!("PATCH {list}/{resource}"), field, id));
        }
    }
    all
}

fn policy_references(own: &ResourceIds, other: &ResourceIds) -> Vec<Reference> {
    let field = "osUpdatePolicyId";
    let mut all = vec![
        reference("POST os-update-policies", "targetOsId", &other.os),
        reference("PUT assignments/project", field, &other.policy),
    ];
    for target in [&own.instance, &own.host, &own.site, &own.region] {
        for method in ["PUT", "PATCH"] {
            let what = format!("{method} assignments/{target}");
            all.push(reference(what, field, &other.policy));
        }
    }
    all
}

/// The other members of such a body, so that only the reference is wrong.
pub fn base_body(what: &str, own: &ResourceIds, context: &AttackContext<'_>) -> Value {
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let is_new = method == "POST";
    if path.starts_with("schedules/") {
        let mut body = json!({
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "targetHostId": "", "targetSiteId": "",
            "targetRegionId": "",
        });
        if path.starts_with("schedules/single") {
            body["startSeconds"] = json!(context.server.seconds(60));
            return body;
        }
        body["durationSeconds"] = json!(60);
        for field in ["Minutes", "Hours", "DayMonth", "Month", "DayWeek"] {
            body[format!("cron{field}")] = json!("*");
        }
        return body;
    }
    if path.starts_with("compute/hosts/host-") {
        return json!({"name": context.attacker.mark});
    }
    match path {
        "compute/instances" if is_new => {
            json!({"hostID": context.attacker.spare, "osID": own.os})
        }
        "compute/hosts/register" => json!({"serialNumber": "NEWONE"}),
        "compute/hosts" => json!({"name": "new"}),
        "os-update-policies" => json!({"name": "new", "updatePolicy": "UPDATE_POLICY_TARGET"}),
        _ => json!({}),
    }
}

/// Changes of own resources that also name foreign ones: request, body, and whether the foreign ids
/// are ignored.
pub fn masked_changes(
    own: &ResourceIds,
    other: &ResourceIds,
    context: &AttackContext<'_>,
) -> Vec<(String, Value, bool)> {
    let name = context.attacker.mark;
    let of = |id: &String| json!({"resourceId": id});
    let host = format!("compute/hosts/{}", own.host);
    let site = format!("sites/{}", own.site);
    let region = format!("regions/{}", own.region);
    let instance = format!("compute/instances/{}", own.instance);
    let single = format!("schedules/single/{}", own.schedule);
    let to_host = json!({"name": name, "siteId": other.site});
    let to_site = json!({"name": name, "regionId": other.region});
    let to_region = json!({"name": name, "parentId": other.region});
    let to_instance = json!({"name": name, "osUpdatePolicyID": other.policy, "hostID": other.host});
    let to_single = json!({
        "name": name, "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "targetSiteId": other.site,
        "startSeconds": context.server.seconds(60),
    });
    let host_with_relations = json!({
        "name": name, "resourceId": other.host, "site": of(&other.site), "provider": of(&other.provider),
        "instance": of(&other.instance),
    });
    let site_with_relations = json!({
        "name": name, "regionId": own.region, "siteID": other.site, "region": of(&other.region),
    });
    let instance_with_relations = json!({
        "name": name, "instanceID": other.instance, "os": of(&other.os), "host": of(&other.host),
        "updatePolicy": of(&other.policy), "localaccount": of(&other.account),
    });
    let mut all = vec![(format!("PUT {site}"), site_with_relations.clone(), true)];
    for (path, mask, body, is_ignored) in [
        (&host, "", &host_with_relations, true),
        (&host, "?fieldMask=site,name", &host_with_relations, true),
        (&host, "?fieldMask=name", &to_host, true),
        (&host, "?fieldMask=name,siteId", &to_host, false),
        (&site, "", &site_with_relations, true),
        (&site, "?fieldMask=name", &to_site, true),
        (&site, "?fieldMask=regionId", &to_site, false),
        (&region, "?fieldMask=name", &to_region, true),
        (&region, "?fieldMask=parentId", &to_region, false),
        (&instance, "", &instance_with_relations, true),
        (&instance, "?fieldMask=name", &to_instance, true),
        (&instance, "?fieldMask=hostID", &to_instance, false),
        (&single, "?fieldMask=name", &to_single, true),
        (&single, "?fieldMask=targetSiteId", &to_single, false),
    ] {
        let what = format!("PATCH {path}{mask}");
        all.push((what, body.clone(), is_ignored));
    }
    all
}
