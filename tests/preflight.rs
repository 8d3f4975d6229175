//! What must be refused before a node starts, each with exit 2 and one line that names rule and
//! mend.
//!
//! Real processes: a seccomp filter and a resource limit are set in the child, after the fork. Some
//! of these states would otherwise show as a panic of the executor about old kernels, or as damage
//! much later.

mod node;

use node::{Node, Place, millrace, refuses};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

fn serve(config: &Path) -> Command {
    let mut command = millrace();
    command.arg("serve").arg("--config").arg(config);
    command
}

/// Makes `io_uring_setup` fail with EPERM, as container runtimes do.
fn forbid_io_uring() -> std::io::Result<()> {
    let filter = [
        // Load the number of the system call; if it is io_uring_setup, fail, else allow.
        libc::sock_filter {
            code: 0x20,
            jt: 0,
            jf: 0,
            k: 0,
        },
        libc::sock_filter {
            code: 0x15,
            jt: 0,
            jf: 1,
            k: libc::SYS_io_uring_setup as u32,
        },
        libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: 0x0005_0000 | libc::EPERM as u32,
        },
        libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: 0x7fff_0000,
        },
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: both calls change this process only, which is the child between fork and exec; the
    // program is read during the call.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if set {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

///
#[test]
fn io_uring_forbidden() {
    let place = Place::new();
    let mut command = serve(&place.write_config(1, ""));
    // SAFETY: the closure makes two system calls and touches no memory of the parent.
    unsafe { command.pre_exec(forbid_io_uring) };
    refuses(command, &["io_uring must be allowed", "seccomp"]);
}

#[test]
fn too_little_locked_memory() {
    let place = Place::new();
    let mut command = serve(&place.write_config(1, ""));
    let limit = || {
        let limit = libc::rlimit {
            rlim_cur: 65_536,
            rlim_max: 65_536,
        };
        // SAFETY: the call reads the struct that it is given.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and touches no memory of the parent.
    unsafe { command.pre_exec(limit) };
    refuses(command, &["memlock limit", "65536", "ulimit -l"]);
}

/// What one core needs is not enough for two, unless the process may lock what it likes.
#[test]
fn too_little_locked_memory_for_all_cores() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return println!("not run: one CPU");
    }
    let place = Place {
        port: node::ports::reserve(2),
        ..Place::new()
    };
    let config = place.write_config(1, "[cores]\ncount = 2\n");
    for verb in ["serve", "check"] {
        let mut command = millrace();
        command.arg(verb).arg("--config").arg(&config);
        let limit = || {
            let limit = libc::rlimit {
                rlim_cur: 512 << 10,
                rlim_max: 512 << 10,
            };
            // SAFETY: the calls read what they are given; the second takes a capability away from
            // what the program that is executed next may have.
            let set = unsafe {
                libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) == 0
                    && (libc::geteuid() != 0
                        || libc::prctl(libc::PR_CAPBSET_DROP, 14, 0, 0, 0) == 0)
            };
            match set {
                true => Ok(()),
                false => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes three system calls and touches no memory of the parent.
        unsafe { command.pre_exec(limit) };
        let words = ["memlock limit", "1048576", "LimitMEMLOCK"];
        if verb == "serve" {
            refuses(command, &words);
            continue;
        }
        std::fs::create_dir_all(place.data()).unwrap();
        let output = node::finish(command);
        let said = node::text(&output.stdout);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for word in words {
            assert!(said.contains(word), "no `{word}` in: {said}");
        }
    }
}

#[test]
fn port_in_use() {
    let place = Place::new();
    let held = std::net::TcpListener::bind(place.address()).unwrap();
    refuses(
        serve(&place.write_config(1, "")),
        &["node.address", "the port must be free"],
    );
    drop(held);
}

#[test]
fn more_executors_than_cpus() {
    let place = Place::new();
    let config = place.write_config(1, "[cores]\ncount = 200\n");
    refuses(serve(&config), &["cores.count", "CPU mask", "200"]);
}

#[test]
fn no_data_directory() {
    let place = Place::new();
    std::fs::write(place.data(), "a file").unwrap();
    refuses(
        serve(&place.write_config(1, "")),
        &["node.data_dir", "must be a directory"],
    );
}

#[test]
fn data_directory_of_another_node_or_in_use() {
    let place = Place::new();
    let config = place.write_config(1, "");
    let running = Node::start(&config, &place.address());

    let other = Place {
        directory: place.directory,
        port: node::ports::reserve(1),
    };
    let same_directory = other.write_config(1, "");
    refuses(
        serve(&same_directory),
        &["node.data_dir", "one process at a time"],
    );
    running.kill();

    let another_node = other.write_config(2, "");
    refuses(serve(&another_node), &["its node is 1", "node.id is 2"]);
    let more_shards = other.write_config(1, "");
    let mut command = serve(&more_shards);
    command.args(["--set", "cluster.shards=2"]);
    refuses(command, &["its shards is 1", "cluster.shards is 2"]);
    let mut command = serve(&more_shards);
    command.args(["--set", "cluster.kind=\"mesh\""]);
    refuses(command, &["its kind is set", "cluster.kind is mesh"]);
}

/// As a start has it: what is missing is created, where that is possible.
#[test]
fn a_check_takes_a_directory_that_a_start_would_create() {
    let place = Place::new();
    let config = place.write_config(1, "");
    let check = |arguments: &[&std::ffi::OsStr]| {
        let mut command = millrace();
        command.arg("check").args(arguments);
        node::finish(command)
    };
    let deep = place.directory.path().join("not/there/yet");
    for arguments in [
        ["--config".as_ref(), config.as_os_str()],
        ["--data-dir".as_ref(), deep.as_os_str()],
    ] {
        let output = check(&arguments);
        let said = node::text(&output.stdout);
        assert!(output.status.success(), "{said}");
        let within = format!(
            "ok, will be created in {}",
            place.directory.path().display()
        );
        assert!(said.contains(&within), "{said}");
    }
    assert!(
        !place.data().exists() && !deep.exists(),
        "check makes nothing"
    );
    let node = Node::start(&config, &place.address());
    node.kill();
    // Below a file nothing can be created, and a start says the same.
    let below = config.join("data");
    let output = check(&["--data-dir".as_ref(), below.as_os_str()]);
    assert_eq!(output.status.code(), Some(2));
    let said = node::text(&output.stdout);
    assert!(
        said.contains("must be a directory that this user can write"),
        "{said}"
    );
    let mut command = serve(&config);
    command.arg("--data-dir").arg(below);
    refuses(command, &["must be a directory that this user can write"]);
}

/// a limit of open files that cannot carry the logs is refused, by `check` as well.
#[test]
fn too_few_open_files() {
    let place = Place::new();
    let config = place.write_config(1, "");
    let few = |mut command: Command| {
        let limit = || {
            let limit = libc::rlimit {
                rlim_cur: 40,
                rlim_max: 40,
            };
            // SAFETY: the call reads the struct that it is given.
            match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes one system call and touches no memory of the parent.
        unsafe { command.pre_exec(limit) };
        command
    };
    refuses(
        few(serve(&config)),
        &["limit of open files", "40", "ulimit -Hn"],
    );
    let mut check = millrace();
    check.arg("check").arg("--config").arg(&config);
    let output = node::finish(few(check));
    assert_eq!(output.status.code(), Some(2));
    let said = node::text(&output.stdout);
    assert!(
        said.contains("open files") && said.contains("ulimit -Hn"),
        "{said}"
    );
}

/// A device that never ends is no configuration.
#[test]
fn an_endless_file_is_no_configuration() {
    refuses(serve(Path::new("/dev/zero")), &["--config", "at most"]);
}
