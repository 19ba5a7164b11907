//! Processes that end together. Without the test harness: the program is the first process of its own
//! namespaces, and has to enter a user namespace with a single thread where it is not root.

use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use sphinx_netdev::{
    netns::{Access, Namespace, enter_user_namespace, probe},
    pidns::{PidNamespace, serve_as_init},
};

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("--list") => {
            println!("pid_namespace: test");
            return ExitCode::SUCCESS;
        }
        Some("init") => serve_as_init(),
        Some("maker") => return make_and_wait(),
        _ => {}
    }
    match probe() {
        Ok(Access::Direct) => {}
        Ok(Access::UserNamespace) => {
            if let Err(error) = enter_user_namespace() {
                sphinx_testing::skipped!("{error}");
                return ExitCode::SUCCESS;
            }
        }
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            return ExitCode::SUCCESS;
        }
    }
    commands_run_inside();
    println!("test commands_run_inside ... ok");
    all_processes_end_with_the_namespace();
    println!("test all_processes_end_with_the_namespace ... ok");
    all_processes_end_with_the_maker();
    println!("test all_processes_end_with_the_maker ... ok");
    ExitCode::SUCCESS
}

fn start() -> io::Result<(PidNamespace, Namespace)> {
    let mut init = Command::new(env::current_exe()?);
    Ok((PidNamespace::start(init.arg("init"))?, Namespace::new()?))
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    command
}

fn commands_run_inside() {
    let (mut processes, network) = start().unwrap();
    let script = "echo $$; pwd; readlink /proc/self | grep -c . ; cat /proc/net/dev; exit 7";
    let child = processes.spawn(&network, &mut shell(script)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("2"), "{text}");
    let here = env::current_dir().unwrap();
    assert_eq!(lines.next(), here.to_str());
    assert_eq!(text.matches("lo:").count(), 1);
    let missing = processes.spawn(&network, &mut Command::new("/no/such/command"));
    assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    processes.kill();
    processes.wait().unwrap();
    assert!(processes.spawn(&network, &mut shell("true")).is_err());
}

/// Starts something that leaves a daemon behind; returns the daemon's number outside.
fn with_daemon(processes: &PidNamespace, network: &Namespace) -> Child {
    let script = "(setsid sleep 987654 >/dev/null 2>&1 &) ; echo started; exec sleep 987654";
    let mut child = processes.spawn(network, &mut shell(script)).unwrap();
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    child
}

/// Processes outside of this one's namespace view that are members of the given PID namespace.
fn members(namespace: &fs::Metadata) -> usize {
    use std::os::unix::fs::MetadataExt;
    let is_member = |entry: &fs::DirEntry| {
        fs::metadata(entry.path().join("ns/pid"))
            .is_ok_and(|found| (found.dev(), found.ino()) == (namespace.dev(), namespace.ino()))
    };
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries.filter(is_member).count()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn all_processes_end_with_the_namespace() {
    let (mut processes, network) = start().unwrap();
    let mut child = with_daemon(&processes, &network);
    let path = format!("/proc/{}/ns/pid", child.id());
    let namespace = fs::metadata(path).unwrap();
    wait_until("the daemon starts", || members(&namespace) == 3);
    processes.kill();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    processes.wait().unwrap();
    assert_eq!(members(&namespace), 0);
}

/// The program that is killed by the test.
fn make_and_wait() -> ExitCode {
    let (processes, network) = start().unwrap();
    let mut child = with_daemon(&processes, &network);
    println!("{}", child.id());
    let _ = child.wait();
    ExitCode::SUCCESS
}

fn all_processes_end_with_the_maker() {
    let mut maker = Command::new(env::current_exe().unwrap())
        .arg("maker")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(maker.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let namespace = fs::metadata(format!("/proc/{}/ns/pid", line.trim())).unwrap();
    wait_until("the daemon starts", || members(&namespace) == 3);
    maker.kill().unwrap();
    maker.wait().unwrap();
    wait_until("all end", || members(&namespace) == 0);
}
