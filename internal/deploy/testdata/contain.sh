# Starts what an image says, as a container runtime would: contain.sh ROOT DIRECTORY UID
# PROGRAM ARGUMENTS. ROOT is read-only but for /tmp and the volumes, which are in
# DIRECTORY, as is mcp.json. It has to be started by
#
#	unshare --mount --pid --fork --kill-child
set -eu
root=$1 dir=$2 user=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mkdir -p proc dev tmp etc/toolgate
mount -o remount,bind,ro .
mount -t proc proc proc
mount -t tmpfs tmpfs dev
for d in null zero full random urandom tty; do
	touch "dev/$d"
	mount --bind "/dev/$d" "dev/$d"
done
mount -t tmpfs -o mode=1777 tmpfs tmp
mount --bind "$dir/config" etc/toolgate
for v in toolgate toolgate-keys toolgate-servers; do
	cp -a "var/lib/$v" "$dir/" # a new volume begins as the image has it
	mount --bind "$dir/$v" "var/lib/$v"
done
exec setpriv --no-new-privs --bounding-set -all,+setuid,+setgid,+sys_chroot \
	env -i HOME=/var/lib/toolgate-servers PATH=/usr/bin:/usr/sbin chroot --userspec "$user:$user" . "$@"
