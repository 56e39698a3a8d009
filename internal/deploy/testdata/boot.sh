# Boots systemd in namespaces of its own, over a copy of the root file system that is
# thrown away: boot.sh DIRECTORY. It is PID 1 there, so it has to be started by
#
#	unshare --mount --pid --fork --kill-child --uts --ipc --cgroup
#
# DIRECTORY/install is laid over the copy. The network is that of the caller.
set -eu
dir=$1
mount --make-rprivate /
mkdir -p "$dir/root" "$dir/scratch"
mount -t tmpfs tmpfs "$dir/scratch"
mkdir "$dir/scratch/upper" "$dir/scratch/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/scratch/upper,workdir=$dir/scratch/work" "$dir/root"
cd "$dir/root"
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o dev tmpfs dev
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
touch dev/console dev/kmsg
for d in null zero full random urandom tty; do
	touch "dev/$d"
	mount --bind "/dev/$d" "dev/$d"
done
cp -a "$dir/install/." .
printf '[Unit]\nRequires=systemd-journald.service dbus.socket\n' >etc/systemd/system/bare.target
touch "$dir/booting"
pivot_root . mnt
exec env --chdir=/ container=toolgate-test sh -c 'umount -l /mnt && exec /lib/systemd/systemd --system --unit=bare.target --log-target=console' <dev/null >dev/console 2>&1
