//! The router as a process of its own: for what only a process shows, its log, its exit code and
//! its descriptors.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long a test waits for what must happen at once: long enough for a very busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A router that runs, or has run. Killed on drop.
pub struct Process {
    child: Child,
    stderr: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    stdout: Arc<Mutex<Vec<u8>>>,
}

/// How a process ended.
pub struct Ended {
    pub status: ExitStatus,
    pub stderr: Vec<String>,
    pub stdout: Vec<u8>,
}

impl Process {
    /// Starts the binary with exactly these variables.
    pub fn start<N: AsRef<str>, V: AsRef<str>>(variables: &[(N, V)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_router"))
            .env_clear()
            .envs(
                variables
                    .iter()
                    .map(|(name, value)| (name.as_ref(), value.as_ref())),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");

        let stderr = Arc::new(Mutex::new(Vec::new()));
        let stdout = Arc::new(Mutex::new(Vec::new()));
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut output = child.stdout.take().expect("piped");
        let readers = vec![
            thread::spawn({
                let stderr = stderr.clone();
                move || {
                    for line in errors.lines().map_while(Result::ok) {
                        stderr.lock().unwrap().push(line);
                    }
                }
            }),
            thread::spawn({
                let stdout = stdout.clone();
                move || {
                    let mut all = Vec::new();
                    let _ = output.read_to_end(&mut all);
                    *stdout.lock().unwrap() = all;
                }
            }),
        ];
        Self {
            child,
            stderr,
            readers,
            stdout,
        }
    }

    /// What it has logged until now.
    pub fn stderr(&self) -> Vec<String> {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits for a line that holds `part`.
    pub fn line(&self, part: &str) -> String {
        let begun = Instant::now();
        loop {
            let lines = self.stderr();
            if let Some(line) = lines.iter().find(|line| line.contains(part)) {
                return line.clone();
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "no line with {part:?} in {lines:#?}"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The gRPC port, on the loopback interface.
    pub fn grpc(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port("grpc bound to: ")))
    }

    /// The debug port.
    pub fn debug(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port("pprof bound to: ")))
    }

    /// The port of a line that ends with an address, as harnesses look for it.
    fn port(&self, prefix: &str) -> u16 {
        let line = self.line(prefix);
        let (_, port) = line.rsplit_once(':').expect("a port");
        port.parse()
            .unwrap_or_else(|_| panic!("no port at the end of {line:?}"))
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id()))
            .expect("procfs")
            .count()
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()));
        status
            .expect("procfs")
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|size| size.trim().strip_suffix(" kB"))
            .and_then(|size| size.parse::<u64>().ok())
            .expect("a size in kB")
            * 1024
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal, by its name without the SIG.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.id().to_string())
            .status();
        assert!(sent.expect("kill is there").success());
    }

    /// Waits for the end.
    pub fn ended(mut self) -> Ended {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "it runs on: {:#?}",
                self.stderr()
            );
            thread::sleep(Duration::from_millis(5));
        };
        for reader in self.readers.drain(..) {
            reader.join().expect("a reader");
        }
        Ended {
            status,
            stderr: self.stderr(),
            stdout: self.stdout.lock().unwrap().clone(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
