//! Tokens of identity providers.

use evenkeel_auth::{ExternalIssuer, NodeSubject, ProjectNames, RoleKind, RoleLimits, RoleMapping};

use super::*;

#[test]
fn an_outside_issuer_counts_with_its_own_keys_only() {
    let (fixture, outside) = (TokenFixture::new(), TokenFixture::new());
    let folder = outside.folder.path();
    let jwks = folder.join("jwks.json");
    fs::write(&jwks, outside.authority.jwks().to_string()).unwrap();
    let issuer = ExternalIssuer::open("https://login.example/realms/master", None, &jwks).unwrap();
    let TokenFixture { authority, folder: own_folder } = fixture;
    let fixture = TokenFixture { authority: authority.accept(issuer), folder: own_folder };
    let mut theirs = with_claim("iss", json!("https://login.example/realms/master"));
    theirs["aud"] = json!("account");

    let caller = fixture.authority.verify(&outside.sign(&theirs), NOON).unwrap();
    assert!(!caller.issued_by_us && caller.may_write(PROJECT));

    let posing = outside.sign(&valid_claims());
    assert_eq!(fixture.verify(&posing), Err(AuthError::BadSignature), "as us, with their key");
    let posing = fixture.sign(&theirs);
    assert_eq!(fixture.verify(&posing), Err(AuthError::BadSignature), "as them, with our key");
}

#[test]
fn an_outside_issuer_is_limited_to_its_roles_and_projects() {
    let outside = TokenFixture::new();
    let jwks = outside.folder.path().join("jwks.json");
    fs::write(&jwks, outside.authority.jwks().to_string()).unwrap();
    let other = Uuid::from_u128(9);
    let mut claims = with_claim("iss", json!("https://login.example"));
    let roles = ["evenkeel-admin".to_owned(), format!("{other}_im-rw"), format!("{PROJECT}_im-r")];
    claims["realm_access"] = json!({"roles": roles});
    let token = outside.sign(&claims);
    let all = [Role::Administrator, Role::Write(other), Role::Read(PROJECT)];
    let limited = |kinds: &[RoleKind], projects: Option<Vec<Uuid>>| RoleLimits {
        kinds: kinds.to_vec(),
        projects,
    };
    for (limits, expected) in [
        (None, &all[1..]),
        (Some(limited(&[RoleKind::Admin], None)), &all[..1]),
        (Some(limited(&[RoleKind::Read, RoleKind::Write], Some(vec![PROJECT]))), &all[2..]),
        (Some(limited(&[], None)), &all[3..]),
    ] {
        let issuer = ExternalIssuer::open("https://login.example", None, &jwks).unwrap();
        let issuer = match limits {
            Some(limits) => issuer.with_role_limits(limits),
            None => issuer,
        };
        let authority = TokenFixture::new().authority.accept(issuer);
        let caller = authority.verify(&token, NOON).unwrap();
        assert_eq!(caller.roles, expected);
        assert_eq!(caller.actor_name(), "somebody (https://login.example)");
    }
}

/// A mapping of the members of the group `it`.
fn group_mapping(role: &str) -> RoleMapping {
    RoleMapping::new("groups", "it", role.parse().unwrap())
}

#[test]
fn an_outside_issuer_gives_roles_by_the_names_of_projects() {
    let outside = TokenFixture::new();
    let jwks = outside.folder.path().join("jwks.json");
    fs::write(&jwks, outside.authority.jwks().to_string()).unwrap();
    let mut claims = with_claim("iss", json!("https://login.example"));
    claims["realm_access"] = json!({"roles": ["viewer@shops", "administrator@shops", "offline"]});
    claims["groups"] = json!(["it", "staff"]);
    let token = outside.sign(&claims);
    let issuer = ExternalIssuer::open("https://login.example", None, &jwks).unwrap();
    let mappings = ["approver@shops", "operator@banks", "evenkeel-admin"].map(group_mapping);
    let issuer = issuer.with_role_mappings(mappings.into());
    let authority = TokenFixture::new().authority.accept(issuer);
    let roles = || authority.verify(&token, NOON).unwrap().roles.clone();
    let other = Uuid::from_u128(9);
    assert!(roles().is_empty(), "no project exists");
    let set_names = |projects: &[(&str, Uuid)]| {
        let projects = projects.iter().map(|(name, id)| ((*name).to_owned(), *id));
        authority.set_project_names(projects.collect::<ProjectNames>());
    };
    // The roles of administrators exceed what an issuer may give unless it is allowed.
    set_names(&[("shops", PROJECT)]);
    assert_eq!(roles(), [Role::Read(PROJECT), Role::Approve(PROJECT)]);
    // The token is cached now; the projects count nevertheless.
    set_names(&[("banks", PROJECT)]);
    assert_eq!(roles(), [Role::Write(PROJECT)]);
    set_names(&[("shops", other)]);
    assert_eq!(roles(), [Role::Read(other), Role::Approve(other)]);
    set_names(&[]);
    assert!(roles().is_empty());
}

#[test]
fn a_mapping_gives_no_role_beyond_the_limits_of_its_issuer() {
    let outside = TokenFixture::new();
    let jwks = outside.folder.path().join("jwks.json");
    fs::write(&jwks, outside.authority.jwks().to_string()).unwrap();
    let mut claims = with_claim("iss", json!("https://login.example"));
    claims["groups"] = json!("it");
    claims["realm_access"] = json!({"roles": []});
    let token = outside.sign(&claims);
    let limits = RoleLimits {
        kinds: vec![RoleKind::Read, RoleKind::Administrator],
        projects: Some(vec![PROJECT]),
    };
    let issuer = ExternalIssuer::open("https://login.example", None, &jwks).unwrap();
    let roles = ["administrator@shops", "operator@shops", "viewer@banks", "evenkeel-admin"];
    let issuer =
        issuer.with_role_limits(limits).with_role_mappings(roles.map(group_mapping).into());
    let authority = TokenFixture::new().authority.accept(issuer);
    let names = [("shops".to_owned(), PROJECT), ("banks".to_owned(), Uuid::from_u128(9))];
    authority.set_project_names(names.into_iter().collect());
    let caller = authority.verify(&token, NOON).unwrap();
    assert_eq!(caller.roles, [Role::Manage(PROJECT)]);
}

#[test]
fn a_node_of_an_outside_issuer_must_have_a_subject_or_a_client() {
    let outside = TokenFixture::new();
    let jwks = outside.folder.path().join("jwks.json");
    fs::write(&jwks, outside.authority.jwks().to_string()).unwrap();
    let issuer = ExternalIssuer::open("https://login.example", None, &jwks).unwrap();
    let authority = TokenFixture::new().authority.accept(issuer);
    let mut claims = with_claim("iss", json!("https://login.example"));
    claims["realm_access"] = json!({"roles": [format!("{PROJECT}_en-agent-rw")]});
    let caller = authority.verify(&outside.sign(&claims), NOON).unwrap();
    assert_eq!(caller.node_subject, Some(NodeSubject::FirstHost("somebody".into())));
    claims["sub"] = json!("");
    let refused = authority.verify(&outside.sign(&claims), NOON).unwrap_err();
    assert_eq!(refused, AuthError::UnknownNode);
    // EIM's Keycloak names only the client of a node.
    claims.as_object_mut().unwrap().remove("sub");
    claims["azp"] = json!("edgenode-1");
    let caller = authority.verify(&outside.sign(&claims), NOON).unwrap();
    assert_eq!(caller.node_subject, Some(NodeSubject::FirstHost("edgenode-1".into())));
    assert_eq!(caller.subject, "edgenode-1");
}

#[test]
fn an_outside_issuer_may_sign_with_rsa_or_an_elliptic_curve() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = "https://login.example";
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let point = pair.public_key_raw();
    let [x, y] = [&point[1..33], &point[33..65]].map(|half| URL_SAFE_NO_PAD.encode(half));
    let jwks = json!({"keys": [
        {"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "ec", "use": "sig"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
    ]});
    let path = folder.path().join("jwks.json");
    fs::write(&path, jwks.to_string()).unwrap();
    let keys = Keys::open(&folder.path().join("keys")).unwrap();
    let authority = Authority::new(keys, Settings::default())
        .accept(ExternalIssuer::open(issuer, Some("evenkeel"), &path).unwrap());
    let claims = with_claim("iss", json!(issuer));
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("ec".to_owned());
    let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
    let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
    authority.verify(&token, NOON).unwrap();

    let mut shared = Header::new(Algorithm::HS256);
    shared.kid = Some("shared".to_owned());
    let token =
        jsonwebtoken::encode(&shared, &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    assert_eq!(authority.verify(&token, NOON).unwrap_err(), AuthError::UnknownKey);
}
