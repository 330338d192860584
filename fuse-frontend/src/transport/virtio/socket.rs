//! The socket that a VMM connects to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// A socket that listens.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    /// Its name, with device and inode, so that no other's socket is removed.
    name: Option<(PathBuf, (u64, u64))>,
}

impl Socket {
    /// Makes a socket that this user alone can connect to. Replaces the socket of a server that has
    /// ended, and nothing else.
    ///
    /// # Errors
    /// Something else has this name; or the system refuses.
    pub fn bind(path: &Path) -> io::Result<Socket> {
        match std::fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                let why = "there is a file of this name, which is no socket; remove it";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                }
                _ => {
                    let why = "another server listens there";
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = bind_private(path)?;
        let made = std::fs::symlink_metadata(path)?;
        Ok(Socket {
            listener,
            name: Some((path.to_owned(), (made.dev(), made.ino()))),
        })
    }

    /// Uses a socket that another process has made.
    ///
    /// # Errors
    /// It does not listen, or is of another kind.
    pub fn adopt(socket: OwnedFd) -> io::Result<Socket> {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if sockopt::socket_domain(&socket)? != AddressFamily::UNIX
            || sockopt::socket_type(&socket)? != SocketType::STREAM
        {
            return Err(wrong("it is no AF_UNIX socket of type SOCK_STREAM"));
        }
        if !sockopt::socket_acceptconn(&socket)? {
            return Err(wrong("the socket does not listen"));
        }
        let listener = UnixListener::from(socket);
        listener.set_nonblocking(false)?;
        Ok(Socket {
            listener,
            name: None,
        })
    }

    /// Whether the name of the socket still belongs to this user alone. One without a name that
    /// is known here counts as private: whoever handed it over answers for it.
    pub(super) fn is_private(&self) -> bool {
        let Some((path, _)) = &self.name else {
            return true;
        };
        let owner = rustix::process::geteuid().as_raw();
        // An ACL shows in the bits of the group.
        std::fs::symlink_metadata(path)
            .is_ok_and(|there| there.uid() == owner && there.mode() & 0o077 == 0)
    }

    /// Returns a copy of the socket, for a thread that accepts.
    ///
    /// # Errors
    /// No descriptor.
    pub(super) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

/// Makes a socket that listens. The mode of its name is that of the socket at the bind, without the
/// bits of the umask, so nobody else can connect at any moment. The umask stays as it is: it belongs
/// to all threads.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    // For its errors.
    SocketAddr::from_pathname(path)?;
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, libc::SOMAXCONN)?;
    Ok(socket.into())
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some((path, made)) = &self.name else {
            return;
        };
        let there = std::fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()));
        if there.is_ok_and(|there| there == *made)
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!("{} stays: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn socket_belongs_to_its_user_and_goes_with_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = Socket::bind(&path).unwrap();
        let mode = std::fs::symlink_metadata(&path)
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Socket::bind(&path).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        assert!(!path.exists());
    }

    /// Set in the process that has a umask of its own.
    const HAS_UMASK: &str = "PRAMFS_TEST_HAS_UMASK";

    /// Several threads bind and close sockets in a process with this umask, while another one looks
    /// at their modes.
    #[test]
    fn bind_with_any_umask_makes_private_socket_and_keeps_umask() {
        let Some(umask) = std::env::var_os(HAS_UMASK) else {
            for umask in ["0000", "0022"] {
                let run = std::process::Command::new("sh")
                    .args(["-c", "umask $0; exec \"$@\"", umask])
                    .arg(std::env::current_exe().unwrap())
                    .arg("bind_with_any_umask_makes_private_socket_and_keeps_umask")
                    .env(HAS_UMASK, umask)
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&run.stdout);
                assert!(run.status.success() && said.contains("1 passed"), "{said}");
            }
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let path = |number: u32| dir.path().join(format!("socket{number}"));
        std::thread::scope(|threads| {
            let binders = [0, 1, 2].map(|number| {
                let path = path(number);
                threads.spawn(move || {
                    for _ in 0..300 {
                        drop(Socket::bind(&path).unwrap());
                    }
                })
            });
            while !binders.iter().all(|binder| binder.is_finished()) {
                for number in 0..3 {
                    if let Ok(there) = std::fs::symlink_metadata(path(number)) {
                        assert_eq!(there.mode() & 0o777, 0o600);
                    }
                }
            }
        });
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let umask = format!("Umask:\t{}", umask.display());
        assert!(status.lines().any(|line| line == umask), "{status}");
    }

    #[test]
    fn socket_replaces_dead_socket_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(&path).unwrap();
        // Another one has taken the name.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        drop(socket);
        assert_eq!(
            Socket::bind(&path).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    }

    #[test]
    fn socket_that_others_can_reach_is_not_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = Socket::bind(&path).unwrap();
        assert!(socket.is_private());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o660)).unwrap();
        assert!(!socket.is_private());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(socket.is_private());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            assert!(!socket.is_private());
        }
        std::fs::remove_file(&path).unwrap();
        assert!(!socket.is_private());
    }

    #[test]
    fn adopted_socket_must_listen() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(Socket::adopt(one.into()).is_err());
        assert!(Socket::adopt(std::fs::File::open("/dev/null").unwrap().into()).is_err());
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        assert!(Socket::adopt(listener.into()).is_ok());
    }
}
