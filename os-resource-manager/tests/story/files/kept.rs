//! What is kept, and what goes.

use super::*;

const FILE: u64 = LENGTH as u64;

/// All nodes of a project run an operating system.
async fn nodes_run(site: &Site, tenant: TenantId, os: OsId) {
    let sql = format!(
        "BEGIN; SELECT set_config('evenkeel.tenant', '*', true); \
         UPDATE node_states SET os_id = {} WHERE tenant_id = '{tenant}'; COMMIT",
        os.bits().cast_signed()
    );
    let store = &site.house.store;
    store.unprepared(&sql).await.expect("nodes that run it");
}

#[tokio::test]
async fn what_was_used_longest_ago_goes_but_not_under_who_reads_it() {
    let mut site = Site::new().await;
    site.settings.max_bytes = 2 * FILE + 10;
    let all = [31, 32, 33].map(content);
    for (nth, content) in all.iter().enumerate() {
        site.offer(site.house.tenant, &format!("{nth}.0"), content)
            .await;
    }
    let files = site.open();
    let [one, two, three] = &all;
    let token = site.node(0);
    let reading = ask(
        &files.router(),
        Method::GET,
        &by_digest(one),
        Some(&token),
        &[],
    )
    .await;
    for content in [two, three] {
        let got = site.ask(&files, &by_digest(content), &[]).await;
        assert!(
            got.status == StatusCode::OK && got.body == *content,
            "{}",
            got.text()
        );
        let bytes: u64 = site
            .lies_in("sha256")
            .iter()
            .map(|(_, length)| length)
            .sum();
        assert!(bytes <= site.settings.max_bytes);
    }
    let named = |content: &[u8]| (Digest::of(content).hex(), FILE);
    let mut kept = [named(one), named(three)];
    kept.sort();
    assert_eq!(site.lies_in("sha256"), kept);
    assert!(said(reading).await.body == *one);

    let got = site.ask(&files, &by_digest(two), &[]).await;
    assert!(got.body == *two);
    let mut kept = [named(two), named(three)];
    kept.sort();
    assert_eq!(site.lies_in("sha256"), kept, "nobody reads it any more");
}

#[tokio::test]
async fn as_long_as_everything_is_read_there_is_no_room_for_more() {
    let mut site = Site::new().await;
    site.settings.max_bytes = FILE + 10;
    let (one, two) = (content(34), content(35));
    site.offer(site.house.tenant, "1.0", &one).await;
    site.offer(site.house.tenant, "2.0", &two).await;
    let files = site.open();
    let token = site.node(0);
    let reading = ask(
        &files.router(),
        Method::GET,
        &by_digest(&one),
        Some(&token),
        &[],
    )
    .await;
    let got = site.ask(&files, &by_digest(&two), &[]).await;
    assert!(
        got.is_for_later() && got.text().contains("no room"),
        "{}",
        got.text()
    );
    assert!(said(reading).await.body == one);
    let got = site.ask(&files, &by_digest(&two), &[]).await;
    assert!(got.body == two, "{}", got.text());
}

#[tokio::test]
async fn a_full_disk_is_told_and_left_alone() {
    let mut site = Site::new().await;
    site.settings.keep_free = u64::MAX;
    let edge = content(36);
    site.offer(site.house.tenant, "1.0", &edge).await;
    let path = by_digest(&edge);
    let files = site.open();
    let got = site.ask(&files, &path, &[]).await;
    assert!(
        got.is_for_later() && got.text().contains("no room"),
        "{}",
        got.text()
    );
    assert_eq!(site.house.small.count("GET /v2/"), 0, "nothing is begun");
    assert!(site.lies_in("partial").is_empty() && site.lies_in("sha256").is_empty());
    drop(files);

    site.settings.keep_free = 0;
    let got = site.ask(&site.open(), &path, &[]).await;
    assert!(got.body == edge, "there is room again");
}

#[tokio::test]
async fn a_file_that_is_larger_than_everything_is_not_begun_or_stopped() {
    let mut site = Site::new().await;
    site.settings.max_bytes = FILE - 1;
    let edge = content(37);
    site.house.small.put_file("/edge.raw", edge.clone());
    let place = format!("web:{}", site.house.small.file_url("/edge.raw"));
    let digest = Digest::of(&edge);
    // One whose size is known, and one whose size is not.
    site.offer(site.house.tenant, "1.0", &content(38)).await;
    site.name(site.house.tenant, "2.0", &digest, (&place, None))
        .await;
    let files = site.open();
    for content in [&edge, &content(38)] {
        let got = site.ask(&files, &by_digest(content), &[]).await;
        assert_eq!(got.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(got.text().contains("larger than all"), "{}", got.text());
    }
    assert_eq!(site.house.small.count("GET /v2/"), 0);
    assert!(site.lies_in("partial").is_empty() && site.lies_in("sha256").is_empty());
}

#[tokio::test]
async fn the_newest_image_of_a_line_that_nodes_run_is_there_before_anybody_asks() {
    let mut site = Site::new().await;
    site.settings.prefetch = Prefetch::Newest;
    let [old, new, newest] = [39, 40, 41].map(content);
    let os = site.offer(site.house.tenant, "1.9", &old).await;
    site.offer(site.house.tenant, "1.10", &new).await;
    let files = site.open();
    assert_eq!(
        files.prefetch().await.expect("a pass"),
        0,
        "no node runs one"
    );

    nodes_run(&site, site.house.tenant, os).await;
    assert_eq!(files.prefetch().await.expect("a pass"), 1);
    let named = |content: &[u8]| (Digest::of(content).hex(), FILE);
    assert_eq!(site.lies_in("sha256"), [named(&new)]);

    site.offer(site.house.tenant, "1.11", &newest).await;
    assert_eq!(files.prefetch().await.expect("a pass"), 1);
    let before = site.house.small.count("GET /v2/");
    let got = site.ask(&files, &by_digest(&newest), &[]).await;
    assert!(got.body == newest, "{}", got.text());
    assert_eq!(site.house.small.count("GET /v2/"), before);
}

#[tokio::test]
async fn what_comes_before_anybody_asks_does_not_push_its_own_kind_out() {
    let mut site = Site::new().await;
    site.settings.max_bytes = FILE + 10;
    let image = content(42);
    let os = site.offer(site.house.tenant, "1.0", &image).await;
    let (other, second) = (
        crate::house::project(&site.house.store, "other").await,
        content(43),
    );
    let small = fill::Size { hosts: 1, sites: 1 };
    let filled = fill::nodes(&site.house.store, other, small, site.house.clock.now()).await;
    filled.expect("a node");
    let other_os = site.offer(other, "1.0", &second).await;
    nodes_run(&site, site.house.tenant, os).await;
    nodes_run(&site, other, other_os).await;
    let files = site.open();
    for _ in 0..3 {
        assert_eq!(files.prefetch().await.expect("a pass"), 1);
    }
    assert_eq!(
        site.house.small.count("GET /v2/"),
        1,
        "it does not go round"
    );
}
