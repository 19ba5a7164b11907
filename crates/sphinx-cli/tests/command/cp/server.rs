//! An sshd of a test's own.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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

/// What an sshd can be told.
pub(crate) struct Setting<'a> {
    /// What the login shell of its users runs first; `None` leaves them theirs.
    pub(crate) shell: Option<&'a str>,
    /// Directories in which the other end looks for programs, before the usual ones.
    pub(crate) path: Option<PathBuf>,
}

impl Sshd {
    /// One that finds this build's `sphx`; `None`, with the reason on standard error, where there is no sshd.
    pub(crate) fn start() -> Option<Self> {
        let sphx = Path::new(env!("CARGO_BIN_EXE_sphx"));
        Self::with(&Setting {
            shell: None,
            path: sphx.parent().map(Path::to_owned),
        })
    }

    pub(crate) fn with(setting: &Setting<'_>) -> Option<Self> {
        let skipped = |why: &str| {
            eprintln!("skipped: {why}");
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
            fs::write(&config, setting.config(root.path(), port)).unwrap();
            let started = Command::new(&sshd)
                .args(["-D", "-e", "-f"])
                .arg(&config)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(fs::File::create(root.path().join("log")).unwrap())
                .spawn();
            let Ok(mut child) = started else {
                return skipped("sshd does not start");
            };
            if listens(port, &mut child) {
                return Some(Self { root, child, port });
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        let log = fs::read_to_string(root.path().join("log")).unwrap_or_default();
        skipped(&format!("sshd does not run here: {log}"))
    }

    /// How to get there.
    pub(crate) fn ssh(&self) -> String {
        format!("ssh {}", self.ssh_options())
    }

    pub(crate) fn ssh_options(&self) -> String {
        let at = |name: &str| self.root.path().join(name).display().to_string();
        format!(
            "-F none -p {} -i {} -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no \
             -o LogLevel=ERROR -o UserKnownHostsFile={}",
            self.port,
            at("user"),
            at("known"),
        )
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

impl Setting<'_> {
    fn config(&self, root: &Path, port: u16) -> String {
        let at = |name: &str| root.join(name).display().to_string();
        fs::create_dir_all(root.join("home")).unwrap();
        let usual = "/usr/local/bin:/usr/bin:/bin";
        let path = match &self.path {
            Some(path) => format!("{}:{usual}", path.display()),
            None => usual.to_owned(),
        };
        let mut config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nUseDNS no\n\
             SetEnv PATH={path} XDG_STATE_HOME={} XDG_CACHE_HOME={} HOME={}\n",
            at("host"),
            at("authorized"),
            at("state"),
            at("cache"),
            at("home"),
        );
        if let Some(shell) = self.shell {
            config += &format!("ForceCommand {shell}\n");
        }
        config
    }
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

fn listens(port: u16, child: &mut Child) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if child.try_wait().expect("it is our child").is_some() {
            return false;
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}
