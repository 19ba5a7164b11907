//! What the machine did meanwhile, and what it is.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

/// User and system time of what a process has started and waited for, to a hundredth of a second.
pub(crate) fn children_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ticks: Option<u64> = [16, 17]
        .iter()
        .map(|&at| stat_field::<u64>(&stat, at))
        .sum();
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Duration::from_secs_f64(ticks.unwrap_or(0) as f64 / per_second)
}

/// CPU time of the whole machine since it was started, in seconds, all processors together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineTime {
    /// Spent on anything: processes, kernel, interrupts.
    pub busy: f64,
    /// Seconds that the hypervisor took away.
    pub stolen: f64,
}

impl MachineTime {
    /// The time so far; `None` where the system does not say.
    pub fn now() -> Option<MachineTime> {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        parse_machine_time(&fs::read_to_string("/proc/stat").ok()?, ticks)
    }

    /// The time from `earlier` to this.
    pub fn since(&self, earlier: MachineTime) -> MachineTime {
        MachineTime {
            busy: self.busy - earlier.busy,
            stolen: self.stolen - earlier.stolen,
        }
    }
}

fn parse_machine_time(stat: &str, ticks: f64) -> Option<MachineTime> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<f64> = line
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guests are contained in user and nice.
    let &[user, nice, system, _, _, irq, softirq, stolen, ..] = fields.as_slice() else {
        return None;
    };
    Some(MachineTime {
        busy: (user + nice + system + irq + softirq) / ticks,
        stolen: stolen / ticks,
    })
}

/// Where measurements were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The kernel's release.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// Processors this process may use.
    pub cores: usize,
    /// What is measured, and how it is scheduled.
    #[serde(flatten)]
    pub made: Made,
}

/// Under which conditions a run was made that another run of the same file may not share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Made {
    /// The commit that the program was built of, with `+` and the beginning of the program's hash if that has been changed; none if it is
    /// not known. Older runs have the `+` alone.
    #[serde(default)]
    pub commit: Option<String>,
    /// Whether this process, and with it everything that it starts, goes before all ordinary programs (`SCHED_FIFO` or `SCHED_RR`).
    #[serde(default)]
    pub real_time: bool,
    /// So many runs of this kind may have shared the machine, this one included.
    #[serde(default = "alone", skip_serializing_if = "is_alone")]
    pub at_once: usize,
}

fn alone() -> usize {
    1
}

fn is_alone(at_once: &usize) -> bool {
    *at_once == 1
}

impl Default for Made {
    fn default() -> Made {
        Made {
            commit: None,
            real_time: false,
            at_once: 1,
        }
    }
}

impl Environment {
    /// Finds out the kernel, the processor, and how runs are made here.
    pub fn detect() -> Environment {
        let unknown = || "unknown".to_owned();
        // Called for its effect: it remembers where this program is now, so that later calls notice a replacement.
        is_replaced();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Environment {
            kernel: kernel.map_or_else(|_| unknown(), |text| text.trim().to_owned()),
            cpu: cpu_model(&cpu).map_or_else(unknown, ToOwned::to_owned),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            made: Made {
                commit: env::current_exe().ok().and_then(|own| commit(&own)),
                real_time: real_time(),
                at_once: 1,
            },
        }
    }
}

/// Whether another program is now where this one was when it was first asked for: what is started from there is not of the commit that this one
/// was built of.
pub(crate) fn is_replaced() -> bool {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let own = OWN.get_or_init(|| env::current_exe().ok());
    // `/proc/self/exe` is the file that runs, even after it has been replaced or removed.
    own.as_deref()
        .is_some_and(|own| is_another(own, Path::new("/proc/self/exe")))
}

/// Whether there is something else, or nothing, under a name than what runs. False where that cannot be known.
fn is_another(named: &Path, running: &Path) -> bool {
    let file = |path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let running = file(running);
    running.is_some() && file(named) != running
}

fn real_time() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    matches!(scheduling_policy(&stat), Some(SCHED_FIFO | SCHED_RR))
}

/// Linux' numbers of the policies for real-time programs (sched(7)).
const SCHED_FIFO: u32 = 1;
const SCHED_RR: u32 = 2;

/// The scheduling policy in a line of `/proc/PID/stat`.
fn scheduling_policy(stat: &str) -> Option<u32> {
    stat_field(stat, 41)
}

/// Field `at` of a line of `/proc/PID/stat`, as proc(5) counts them, from the third on. Field 2, the program's name in parentheses, may
/// contain anything, spaces and parentheses included.
fn stat_field<N: FromStr>(stat: &str, at: usize) -> Option<N> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields
        .split_whitespace()
        .nth(at.checked_sub(3)?)?
        .parse()
        .ok()
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// The commit that is checked out where a program was built, with `+` and its hash if there are changes, or the program is older than what it
/// is made of. None where that cannot be known, as of one that was installed.
fn commit(program: &Path) -> Option<String> {
    let built = modified(program)?;
    let sources = sources(program)?;
    let place = sources.first()?.parent()?;
    let git = |args: &[&str]| output(Command::new("git").arg("-C").arg(place).args(args));
    let hash = git(&["rev-parse", "--short=12", "HEAD"])?;
    // What figures write is no part of a program: the first one would leave the second without a commit.
    let but_results = ["--", ":(top)", ":(top,exclude)docs/results"];
    let status = [&["status", "--porcelain", "-uno"], &but_results[..]].concat();
    let has_no_changes = git(&status).is_some_and(|it| it.is_empty());
    let is_older = |source: &PathBuf| modified(source).is_some_and(|at| at <= built);
    match has_no_changes && sources.iter().all(is_older) {
        true => Some(hash),
        // With uncommitted changes, or if the program is older than its sources, there are different programs of one commit: their hashes
        // tell them apart.
        false => Some(format!("{hash}{CHANGED}{}", build(program)?)),
    }
}

/// Stands behind the hash of a commit if the program may not be what was committed, and before the beginning of the program's hash.
pub(crate) const CHANGED: char = '+';

/// The beginning of a program's hash.
pub(crate) fn build(program: &Path) -> Option<String> {
    Some(beginning(blake3::hash(&fs::read(program).ok()?)))
}

/// The first 8 hexadecimal digits of a hash: enough to tell a few programs or files apart.
pub(crate) fn beginning(hash: blake3::Hash) -> String {
    hash.to_hex()[..8].to_owned()
}

/// The files that a program is made of, as cargo notes them beside it, and compares their times to know whether to build it again.
fn sources(program: &Path) -> Option<Vec<PathBuf>> {
    let text = fs::read_to_string(program.with_extension("d")).ok()?;
    let (_, names) = text.lines().next()?.split_once(": ")?;
    // Spaces within names have a backslash before them.
    let names = names.replace("\\ ", "\0");
    let names = names.split(' ').filter(|name| !name.is_empty());
    Some(names.map(|name| name.replace('\0', " ").into()).collect())
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// The first line that a successful command prints.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies() {
        let line = |policy: u32| {
            let zeros = "0 ".repeat(37);
            format!("17 (a ) name) S {zeros}{policy} 0 0")
        };
        assert_eq!(scheduling_policy(&line(1)), Some(1));
        assert_eq!(scheduling_policy(&line(0)), Some(0));
        assert_eq!(scheduling_policy("17 (cut off) S 1"), None);
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(scheduling_policy(&own).is_some());
    }

    #[test]
    fn machine_time() {
        let stat = "cpu  100 10 50 9000 7 3 2 5 40 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n";
        let expected = MachineTime {
            busy: 1.65,
            stolen: 0.05,
        };
        assert_eq!(parse_machine_time(stat, 100.0), Some(expected));
        assert_eq!(parse_machine_time("cpu  1 2 x\n", 100.0), None);
        assert_eq!(parse_machine_time("", 100.0), None);
        let since = expected.since(MachineTime {
            busy: 1.0,
            stolen: 0.05,
        });
        assert!((since.busy - 0.65).abs() < 1e-9 && since.stolen == 0.0);
        assert!(MachineTime::now().is_some_and(|now| now.busy > 0.0));
    }

    #[test]
    fn the_commit_is_that_of_what_a_program_was_built_of() {
        if output(Command::new("git").arg("--version")).is_none() {
            sphinx_testing::skipped!("git is not installed");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [source, other, program] =
            ["a source.rs", "other", "program"].map(|name| directory.path().join(name));
        let git = |args: &[&str]| {
            let own = ["user.name=n", "user.email=e", "commit.gpgsign=false"];
            let mut command = Command::new("git");
            command.arg("-C").arg(directory.path());
            for setting in own {
                command.args(["-c", setting]);
            }
            let ended = command.args(args).output().unwrap();
            assert!(ended.status.success(), "{ended:?}");
        };
        let minute = |path: &Path, count: u64| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(60 * count);
            let file = fs::File::options().append(true).open(path).unwrap();
            file.set_modified(time).unwrap();
        };
        let results = directory.path().join("docs/results");
        fs::create_dir_all(&results).unwrap();
        let page = results.join("page.md");
        for path in [&source, &other, &program, &page] {
            fs::write(path, "one").unwrap();
        }
        git(&["init", "-q"]);
        git(&["add", "a source.rs", "other", "docs"]);
        git(&["commit", "-q", "--no-verify", "-m", "one"]);
        minute(&source, 1);
        minute(&program, 2);
        // A program without a word of its sources, as from a package.
        assert_eq!(commit(&program), None);
        let name = source.display().to_string().replace(' ', "\\ ");
        let noted = format!("{}: {name}\n", program.display());
        fs::write(directory.path().join("program.d"), noted).unwrap();
        let first = commit(&program).unwrap();
        assert_eq!(first.len(), 12, "{first}");
        assert!(first.bytes().all(|it| it.is_ascii_hexdigit()), "{first}");
        fs::write(&page, "two").unwrap();
        assert_eq!(commit(&program).as_ref(), Some(&first));

        fs::write(&other, "two").unwrap();
        let changed = |commit: &str| format!("{commit}+{}", build(&program).unwrap());
        let one = changed(&first);
        assert_eq!(commit(&program), Some(one.clone()));
        // Another build of the same commit, with other changes.
        fs::write(&program, "two").unwrap();
        minute(&program, 2);
        assert_ne!(changed(&first), one);
        assert_eq!(commit(&program), Some(changed(&first)));
        git(&["commit", "-q", "--no-verify", "-a", "-m", "two"]);
        let second = commit(&program).unwrap();
        assert!(second != first && !second.contains(CHANGED), "{second}");

        // Another commit is checked out, and nothing is built.
        minute(&source, 3);
        assert_eq!(commit(&program), Some(changed(&second)));
        minute(&program, 4);
        assert_eq!(commit(&program), Some(second));
    }

    #[test]
    fn a_program_that_is_built_anew_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let [named, running, new] =
            ["named", "running", "new"].map(|name| directory.path().join(name));
        fs::write(&named, "old").unwrap();
        fs::hard_link(&named, &running).unwrap();
        assert!(!is_another(&named, &running));
        fs::write(&new, "new").unwrap();
        fs::rename(&new, &named).unwrap();
        assert!(is_another(&named, &running));
        fs::remove_file(&named).unwrap();
        assert!(is_another(&named, &running));
        fs::remove_file(&running).unwrap();
        assert!(!is_another(&named, &running));
        assert!(!is_replaced());
    }

    #[test]
    fn model_of_the_processor() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2.6 GHz\nflags\t: x\n";
        assert_eq!(cpu_model(cpuinfo), Some("Some CPU @ 2.6 GHz"));
        assert_eq!(cpu_model(""), None);
    }
}
