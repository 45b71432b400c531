//! Another program that holds a lock of apt or dpkg.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use evenkeel_update_agent::runner::{Command, HostRunner, Runner};

/// Locks like dpkg, creates the file `locked`, and holds the lock until the file `unlock` exists.
const HOLDER_SCRIPT: &str = r#"
use Fcntl;
open(my $file, "+>", "$ARGV[0]/$ARGV[1]") or die;
my $lock = pack("s s x4 q q l x4", F_WRLCK, 0, 0, 0, 0);
fcntl($file, F_SETLK, $lock) or die;
open(my $locked, ">", "$ARGV[0]/locked") or die; close($locked);
select(undef, undef, undef, 0.01) until -e "$ARGV[0]/unlock";
"#;

/// Locks as dpkg does, signals it with the file `held`, and holds the lock until the file `go` exists.
pub const HOLD_DPKG_LOCK: &str = r#"
use Fcntl;
open(my $file, "+>", "$ARGV[0]/var/lib/dpkg/lock") or die;
my $lock = pack("s s x4 q q l x4", F_WRLCK, 0, 0, 0, 0);
fcntl($file, F_SETLK, $lock) or die;
open(my $held, ">", "$ARGV[0]/held") or die; close($held);
select(undef, undef, undef, 0.01) until -e "$ARGV[0]/go";
"#;

/// Holds the lock at a path inside the root in another process until `ours` ends.
pub async fn while_locked(root: &Path, lock: &str, ours: impl Future<Output = ()>) {
    let folder = root.display().to_string();
    let holder = Command::new("perl", Duration::from_mins(1)).with_arguments([
        "-e",
        HOLDER_SCRIPT,
        &folder,
        lock,
    ]);
    let ours = async {
        while !root.join("locked").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ours.await;
        std::fs::write(root.join("unlock"), "").unwrap();
    };
    let runner = HostRunner::new(Path::new("/"));
    let both = async { tokio::join!(runner.run(&holder), ours) };
    let (output, ()) =
        tokio::time::timeout(Duration::from_mins(1), both).await.expect("a holder and an agent");
    assert!(output.unwrap().succeeded());
}
