//! NFS-Ganesha exports the mount by file handles, on the loopback interface only. A
//! client in user space works over NFS while others use the mount directly.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::suite::{Run, find, missing, mount_for, say, unmount_and_check};
use rustix::process::{Pid, Signal};

use crate::{PYTHON, TIMEOUT, alone, let_others_in};

struct Server {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
}

impl Server {
    fn start(mount: &Mounted) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // A port that was free a moment ago.
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        drop(probe);
        let configuration = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1;\n\
             Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}\n\
             NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = \"{}\";\n\
             Only_Numeric_Owners = true; }}\n\
             EXPORT {{ Export_Id = 1; Path = \"{}\"; Pseudo = /export; Access_Type = RW;\n\
             Squash = No_root_squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
            at("recovery").display(),
            mount.path().display()
        );
        std::fs::create_dir(at("recovery")).unwrap();
        std::fs::write(at("conf"), configuration).unwrap();
        let child = Command::new(find("ganesha.nfsd").unwrap())
            .args(["-F", "-N", "NIV_EVENT", "-f"])
            .arg(at("conf"))
            .arg("-L")
            .arg(at("log"))
            .arg("-p")
            .arg(at("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { child, dir, port };
        let ready = wait_until(|| server.log().contains("NFS SERVER INITIALIZED"));
        assert!(ready, "ganesha.nfsd: {}", server.log());
        server
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn stop(mut self) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        let ended = wait_until(|| self.child.try_wait().unwrap().is_some());
        assert!(ended, "ganesha.nfsd does not end: {}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended by `stop`, unless the test has failed.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn nfs_ganesha_exports_mount() {
    let test = "NFS-Ganesha";
    let _alone = alone();
    let Some(mount) = mount_for(test, &["ganesha.nfsd", PYTHON], 256, "") else {
        return;
    };
    let python = Run::new("python3", PYTHON, TIMEOUT)
        .args(["-c", "import ctypes; ctypes.CDLL('libnfs.so.13')"])
        .output();
    if !python.status.success() {
        return missing(test, "no library libnfs.so.13");
    }
    let_others_in(&mount);
    let server = Server::start(&mount);
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/nfs.py");
    let url = format!(
        "nfs://127.0.0.1/export?version=4&nfsport={}&uid=0&gid=0",
        server.port
    );
    let out = Run::new("nfs.py", PYTHON, Duration::from_secs(120))
        .arg(program)
        .arg(url)
        .arg(mount.path())
        .output();
    assert!(
        out.status.success(),
        "{}: {}\n{}",
        out.status,
        out.text,
        server.log()
    );
    server.stop();
    let check = unmount_and_check(&mount);
    say(format_args!("{test}: {}; fsck: {check}", out.text.trim()));
}
