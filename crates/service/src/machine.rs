//! The limits of memory and open files of this process, read from Linux.

use std::path::Path;

/// Memory size to assume if it cannot be determined, in bytes.
const UNKNOWN_BYTES: u64 = 2 << 30;

/// Half of the memory that this process may use: the least of the machine's memory, the limits of its control groups
/// and the limit of its address space. The other half is for the engine, the interpreter and other uses that are not
/// charged to requests.
pub(crate) fn memory_share() -> usize {
    let bytes = memory_bytes(&|path| std::fs::read_to_string(path).ok()).unwrap_or(UNKNOWN_BYTES);
    usize::try_from(bytes / 2).unwrap_or(usize::MAX)
}

/// The largest number of connections that the limit of open files allows, and that limit; `None` if there is no limit.
/// A quarter of the files, at least 128, is reserved for the engine and other uses.
pub(crate) fn connections_max() -> Option<(usize, usize)> {
    connections_within(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

fn connections_within(limits: &str) -> Option<(usize, usize)> {
    let files = usize::try_from(process_limit("Max open files", limits)?).ok()?;
    Some((files.saturating_sub((files / 4).max(128)), files))
}

/// The soft limit from the line of `/proc/self/limits` that starts with `name`.
fn process_limit(name: &str, limits: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

fn memory_bytes(read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let read = |path: &str| read(Path::new(path));
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:").map(str::to_owned))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1_024)
    });
    let addresses = read("/proc/self/limits").and_then(|text| process_limit("Max address space", &text));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    // The file of a group without a limit contains `max`, which is no number and is left out.
    let groups = groups.lines().filter_map(group_files).flatten().filter_map(|path| read(&path)?.trim().parse().ok());
    groups.chain(machine).chain(addresses).min()
}

/// The files with the memory limits of a line of `/proc/self/cgroup`: those of the group and of all its ancestors.
fn group_files(line: &str) -> Option<Vec<String>> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    // In a container, the path of the group may be the host's path while its files are at the root, so try all levels.
    let levels = Path::new(group).ancestors().map(|level| {
        let level = level.to_string_lossy();
        format!("{root}/{}/{file}", level.trim_matches('/')).replace("//", "/")
    });
    Some(levels.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const MEMINFO: &str = "MemTotal:       16000000 kB\nMemFree:        1 kB\n";

    fn bytes(files: &[(&str, &str)]) -> Option<u64> {
        let files: HashMap<&Path, &str> = files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
        memory_bytes(&|path| files.get(path).map(|text| (*text).to_owned()))
    }

    #[test]
    fn the_least_of_all_limits_counts() {
        let unlimited = "Limit  Soft Limit  Hard Limit  Units\nMax address space         unlimited  unlimited  bytes\n";
        let limited = "Max address space         2147483648           unlimited            bytes\n";
        assert_eq!(bytes(&[("/proc/meminfo", MEMINFO), ("/proc/self/limits", unlimited)]), Some(16_384_000_000));
        assert_eq!(bytes(&[("/proc/meminfo", MEMINFO), ("/proc/self/limits", limited)]), Some(2 << 30));
        assert_eq!(bytes(&[]), None);
    }

    #[test]
    fn limits_of_control_groups_hold_at_every_level() {
        let second = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/system.slice/chronotile.service\n"),
            ("/sys/fs/cgroup/system.slice/chronotile.service/memory.max", "max\n"),
            ("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
        ];
        assert_eq!(bytes(&second), Some(1 << 30));
        let container = [("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "536870912\n")];
        assert_eq!(bytes(&container), Some(512 << 20));
        let first = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "5:devices:/a\n4:memory:/a/b\n"),
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "268435456\n"),
        ];
        assert_eq!(bytes(&first), Some(256 << 20));
    }

    #[test]
    fn the_limit_of_open_files_leaves_room_for_the_engine() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(process_limit("Max open files", limits), Some(1_024));
        assert_eq!(process_limit("Max locked memory", limits), None);
        assert_eq!(connections_within(limits), Some((768, 1_024)));
        assert_eq!(connections_within("Max open files 256 4096 files"), Some((128, 256)));
        assert_eq!(connections_within("Max open files unlimited unlimited files"), None);
    }
}
