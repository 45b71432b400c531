//! Schedules and providers of the listing project.

use super::*;

pub async fn create_schedules(
    tx: &Tx,
    oracle: &mut ListingOracle,
    (hosts, sites, regions): (&[Host], &[Site], &[Region]),
) {
    let targets = [
        ScheduleTarget::Host(hosts[0].id),
        ScheduleTarget::Site(sites[0].id),
        ScheduleTarget::Region(regions[0].id),
    ];
    for n in 0..8_usize {
        let single = SingleSpec {
            name: nth_name(n),
            status: ScheduleStatus::ALL[n % ScheduleStatus::ALL.len()],
            start: NOON + TimeDelta::hours(1),
            end: n.is_multiple_of(2).then(|| nth_time(n) + TimeDelta::hours(2)),
            target: nth_or_none(&targets, n),
        };
        let single = schedules::create(tx, &single, nth_time(n)).await.expect("created");
        oracle.add(model::single(&single));
        let repeated_schedule = RepeatedSpec {
            name: nth_name(n + 1),
            status: ScheduleStatus::OsUpdate,
            duration: TimeDelta::minutes(i64::from(to_u32(n)) + 1),
            cron: Cron::parse("0", "2", "*", "*", "1-5").expect("a cron"),
            zone: Zone::UTC,
            target: nth_or_none(&targets, n + 1),
        };
        let repeated_schedule =
            repeated::create(tx, &repeated_schedule, nth_time(n)).await.expect("created");
        oracle.add(model::repeated(&repeated_schedule));
    }
}

/// Sets the provider of some hosts.
pub async fn set_providers(
    store: &Store,
    tenant: TenantId,
    hosts: &[Host],
    providers: &[Provider],
) {
    for (n, host) in hosts.iter().enumerate() {
        if let Some(provider) = nth_or_none(&[providers[0].id, providers[1].id], n) {
            let sql = format!(
                "BEGIN; SET LOCAL evenkeel.tenant = '{tenant}'; \
                 UPDATE hosts SET provider_id = {} WHERE id = {}; COMMIT",
                provider.bits().cast_signed(),
                host.id.bits().cast_signed()
            );
            store.execute_unprepared(&sql).await.expect("provider set");
        }
    }
}
