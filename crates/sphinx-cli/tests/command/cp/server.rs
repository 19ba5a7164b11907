//! An sshd of a test's own.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tempfile::TempDir;

use crate::common::PATIENCE;

/// Ports that somebody else may take before sshd does.
const ATTEMPTS: usize = 5;

/// Running for as long as it lives, with keys, a configuration and a home of its own.
pub(crate) struct Sshd {
    root: TempDir,
    child: Child,
    port: u16,
}

/// The binary under test.
const SPHX: &str = env!("CARGO_BIN_EXE_sphx");

impl Sshd {
    /// One that finds this build's `sphx`; `None`, with the reason on standard error, where there is no sshd.
    pub(crate) fn start() -> Option<Self> {
        Self::run_by(|sshd| Command::new(sshd), true)
    }

    /// An sshd in whose search path there is no `sphx`.
    pub(crate) fn without_sphx() -> Option<Self> {
        Self::run_by(|sshd| Command::new(sshd), false)
    }

    /// One whose program is started by a command, in other surroundings.
    pub(crate) fn run_by(start: impl Fn(&Path) -> Command, finds_sphx: bool) -> Option<Self> {
        let skipped = |why: &str| {
            sphinx_testing::skipped!("{why}");
            None
        };
        let Some(sshd) = find("sshd") else {
            return skipped("there is no sshd");
        };
        let root = tempfile::tempdir().expect("a temporary directory");
        // sshd trusts no key in a directory that others can write to.
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        for name in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(root.path().join(name))
                .status();
            if !made.is_ok_and(|status| status.success()) {
                return skipped("there is no ssh-keygen");
            }
        }
        fs::copy(root.path().join("user.pub"), root.path().join("authorized")).unwrap();
        if rustix::process::geteuid().is_root() {
            // It separates privileges there; the unit of the distribution makes it as a rule.
            let _ = fs::create_dir_all("/run/sshd");
        }
        for _ in 0..ATTEMPTS {
            let port = free_port();
            let config = root.path().join("config");
            fs::write(&config, config_of(root.path(), port, finds_sphx)).unwrap();
            let started = start(&sshd)
                .args(["-D", "-e", "-f"])
                .arg(&config)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(fs::File::create(root.path().join("log")).unwrap())
                .spawn();
            let Ok(mut child) = started else {
                return skipped("sshd does not start");
            };
            if listens(&mut child, root.path()) {
                return Some(Self { root, child, port });
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        let log = fs::read_to_string(root.path().join("log")).unwrap_or_default();
        skipped(&format!("sshd does not run here: {log}"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The ssh command that reaches this server.
    pub(crate) fn ssh(&self) -> String {
        let at = |name: &str| self.root.path().join(name).display().to_string();
        // A file, so that a jump through the same machine goes by it too.
        let config = format!(
            "Host *\n Port {}\n IdentityFile {}\n IdentitiesOnly yes\n BatchMode yes\n StrictHostKeyChecking no\n \
             LogLevel ERROR\n UserKnownHostsFile {}\n",
            self.port,
            at("user"),
            at("known"),
        );
        fs::write(at("ssh_config"), config).unwrap();
        format!("ssh -F {}", at("ssh_config"))
    }

    /// The other ends that are running: `sphx` below this sshd.
    pub(crate) fn ends(&self) -> Vec<Pid> {
        let ends = self.ends_if_any();
        assert!(!ends.is_empty(), "no other end runs");
        ends
    }

    /// The processes of the other ends; none if there are none.
    pub(crate) fn ends_if_any(&self) -> Vec<Pid> {
        let is_sphx = |process: &Pid| {
            let name = fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero()));
            name.is_ok_and(|name| name.trim() == "sphx")
        };
        let mut below = descendants(self.child.id());
        below.retain(is_sphx);
        below
    }

    /// Waits until nothing runs below it any more: no other end, and none that is about to begin.
    pub(crate) fn wait_until_alone(&self) {
        loop {
            let processes = descendants(self.child.id());
            if processes.is_empty() {
                return;
            }
            processes
                .into_iter()
                .filter_map(Process::of)
                .for_each(Process::wait);
        }
    }

    /// The home directory at the other end.
    pub(crate) fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that may be nobody's child here, and stays the same one whatever becomes of its number.
pub(crate) struct Process(OwnedFd);

impl Process {
    /// `None` if the process has ended.
    pub(crate) fn of(process: Pid) -> Option<Self> {
        pidfd_open(process, PidfdFlags::empty()).ok().map(Self)
    }

    /// Waits for its end.
    pub(crate) fn wait(self) {
        let patience = Timespec::try_from(PATIENCE).expect("seconds");
        let ended = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&patience));
        assert_eq!(ended, Ok(1), "a process at the other end does not end");
    }
}

/// What a process has started, and what that has.
pub(crate) fn descendants(process: u32) -> Vec<Pid> {
    let mut found = vec![process.to_string()];
    let mut at = 0;
    while at < found.len() {
        // Any thread may have started one.
        let threads = fs::read_dir(format!("/proc/{}/task", found[at]));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().map(str::to_owned));
        }
        at += 1;
    }
    (found.iter().skip(1))
        .filter_map(|process| process.parse().ok().and_then(Pid::from_raw))
        .collect()
}

fn config_of(root: &Path, port: u16, finds_sphx: bool) -> String {
    let at = |name: &str| root.join(name).display().to_string();
    fs::create_dir_all(root.join("home")).unwrap();
    let sphx = Path::new(SPHX).parent().filter(|_| finds_sphx);
    let sphx = sphx.map_or(String::new(), |path| format!("{}:", path.display()));
    format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nUseDNS no\n\
         SetEnv PATH={sphx}/usr/bin:/bin XDG_STATE_HOME={} XDG_CACHE_HOME={} HOME={}\n",
        at("host"),
        at("authorized"),
        at("state"),
        at("cache"),
        at("home"),
    )
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places
        .map(|place| place.join(program))
        .find(|path| path.is_file())
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("it is bound").port()
}

/// Waits for it to say so: it may be where it cannot be reached from here.
fn listens(child: &mut Child, root: &Path) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let log = fs::read_to_string(root.join("log")).unwrap_or_default();
        if log.contains("Server listening") {
            return true;
        }
        if child.try_wait().expect("it is our child").is_some() {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}
