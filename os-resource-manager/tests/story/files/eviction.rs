//! The cache: what stays and what is evicted.

use super::*;

const FILE_SIZE: u64 = CONTENT_BYTES as u64;

/// Sets the operating system of all nodes of a project.
async fn set_node_os(fixture: &FileFixture, tenant: TenantId, os: OsId) {
    let sql = format!(
        "BEGIN; SELECT set_config('evenkeel.tenant', '*', true); \
         UPDATE node_states SET os_id = {} WHERE tenant_id = '{tenant}'; COMMIT",
        os.bits().cast_signed()
    );
    let store = &fixture.server.store;
    store.execute_unprepared(&sql).await.expect("nodes that run it");
}

#[tokio::test]
async fn the_least_recently_used_file_is_evicted_but_stays_readable_while_open() {
    let mut fixture = FileFixture::new().await;
    fixture.settings.max_bytes = 2 * FILE_SIZE + 10;
    let all = [31, 32, 33].map(content);
    for (nth, content) in all.iter().enumerate() {
        fixture.offer_blob(fixture.server.tenant, &format!("{nth}.0"), content).await;
    }
    let files = fixture.open();
    let [one, two, three] = &all;
    let token = fixture.node_token(0);
    let reading =
        send_request(&files.router(), Method::GET, &digest_path(one), Some(&token), &[]).await;
    for content in [two, three] {
        let response = fixture.get(&files, &digest_path(content), &[]).await;
        assert!(
            response.status == StatusCode::OK && response.body == *content,
            "{}",
            response.text()
        );
        let bytes: u64 = fixture.cached_files("sha256").iter().map(|(_, length)| length).sum();
        assert!(bytes <= fixture.settings.max_bytes);
    }
    let entry_of = |content: &[u8]| (Digest::compute(content).hex(), FILE_SIZE);
    let mut expected = [entry_of(one), entry_of(three)];
    expected.sort();
    assert_eq!(fixture.cached_files("sha256"), expected);
    assert!(read_response(reading).await.body == *one);

    let response = fixture.get(&files, &digest_path(two), &[]).await;
    assert!(response.body == *two);
    let mut expected = [entry_of(two), entry_of(three)];
    expected.sort();
    assert_eq!(fixture.cached_files("sha256"), expected, "its last reader is gone");
}

#[tokio::test]
async fn there_is_no_space_while_all_files_are_open() {
    let mut fixture = FileFixture::new().await;
    fixture.settings.max_bytes = FILE_SIZE + 10;
    let (one, two) = (content(34), content(35));
    fixture.offer_blob(fixture.server.tenant, "1.0", &one).await;
    fixture.offer_blob(fixture.server.tenant, "2.0", &two).await;
    let files = fixture.open();
    let token = fixture.node_token(0);
    let reading =
        send_request(&files.router(), Method::GET, &digest_path(&one), Some(&token), &[]).await;
    let response = fixture.get(&files, &digest_path(&two), &[]).await;
    assert!(response.is_retryable() && response.text().contains("no space"), "{}", response.text());
    assert!(read_response(reading).await.body == one);
    let response = fixture.get(&files, &digest_path(&two), &[]).await;
    assert!(response.body == two, "{}", response.text());
}

#[tokio::test]
async fn a_full_disk_is_reported_and_nothing_is_downloaded() {
    let mut fixture = FileFixture::new().await;
    fixture.settings.min_free_bytes = u64::MAX;
    let edge = content(36);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let path = digest_path(&edge);
    let files = fixture.open();
    let response = fixture.get(&files, &path, &[]).await;
    assert!(response.is_retryable() && response.text().contains("no space"), "{}", response.text());
    assert_eq!(fixture.server.registry.count_requests("GET /v2/"), 0, "no download starts");
    assert!(
        fixture.cached_files("partial").is_empty() && fixture.cached_files("sha256").is_empty()
    );
    drop(files);

    fixture.settings.min_free_bytes = 0;
    let response = fixture.get(&fixture.open(), &path, &[]).await;
    assert!(response.body == edge, "there is space again");
}

#[tokio::test]
async fn a_file_larger_than_the_cache_is_not_downloaded() {
    let mut fixture = FileFixture::new().await;
    fixture.settings.max_bytes = FILE_SIZE - 1;
    let edge = content(37);
    fixture.server.registry.put_file("/edge.raw", edge.clone());
    let location = format!("web:{}", fixture.server.registry.file_url("/edge.raw"));
    let digest = Digest::compute(&edge);
    // One file with a known size, and one without.
    fixture.offer_blob(fixture.server.tenant, "1.0", &content(38)).await;
    fixture.offer_image(fixture.server.tenant, "2.0", &digest, (&location, None)).await;
    let files = fixture.open();
    for content in [&edge, &content(38)] {
        let response = fixture.get(&files, &digest_path(content), &[]).await;
        assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.text().contains("larger than the cache"), "{}", response.text());
    }
    assert_eq!(fixture.server.registry.count_requests("GET /v2/"), 0);
    assert!(
        fixture.cached_files("partial").is_empty() && fixture.cached_files("sha256").is_empty()
    );
}

#[tokio::test]
async fn the_newest_image_of_a_series_in_use_is_prefetched() {
    let mut fixture = FileFixture::new().await;
    fixture.settings.prefetch = Prefetch::Newest;
    let [old, new, newest] = [39, 40, 41].map(content);
    let os = fixture.offer_blob(fixture.server.tenant, "1.9", &old).await;
    fixture.offer_blob(fixture.server.tenant, "1.10", &new).await;
    let files = fixture.open();
    assert_eq!(files.prefetch().await.expect("a pass"), 0, "no node runs an image");

    set_node_os(&fixture, fixture.server.tenant, os).await;
    assert_eq!(files.prefetch().await.expect("a pass"), 1);
    let entry_of = |content: &[u8]| (Digest::compute(content).hex(), FILE_SIZE);
    assert_eq!(fixture.cached_files("sha256"), [entry_of(&new)]);

    fixture.offer_blob(fixture.server.tenant, "1.11", &newest).await;
    assert_eq!(files.prefetch().await.expect("a pass"), 1);
    let before = fixture.server.registry.count_requests("GET /v2/");
    let response = fixture.get(&files, &digest_path(&newest), &[]).await;
    assert!(response.body == newest, "{}", response.text());
    assert_eq!(fixture.server.registry.count_requests("GET /v2/"), before);
}

#[tokio::test]
async fn prefetched_images_do_not_evict_each_other() {
    let mut fixture = FileFixture::new().await;
    fixture.settings.max_bytes = FILE_SIZE + 10;
    let image = content(42);
    let os = fixture.offer_blob(fixture.server.tenant, "1.0", &image).await;
    let (other, second) = (fixture.server.create_project("other").await, content(43));
    let small = fill::ProjectSize { hosts: 1, sites: 1 };
    let filled =
        fill::seed_nodes(&fixture.server.store, other, small, fixture.server.clock.now()).await;
    filled.expect("a node");
    let other_os = fixture.offer_blob(other, "1.0", &second).await;
    set_node_os(&fixture, fixture.server.tenant, os).await;
    set_node_os(&fixture, other, other_os).await;
    let files = fixture.open();
    for _ in 0..3 {
        assert_eq!(files.prefetch().await.expect("a pass"), 1);
    }
    assert_eq!(
        fixture.server.registry.count_requests("GET /v2/"),
        1,
        "the images do not evict each other"
    );
}
