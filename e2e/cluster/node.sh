#!/bin/bash
# One worker node: its own network, mount, PID, UTS and cgroup namespace over a root of its own.
# `node.sh outer` joins the cgroups and makes the namespaces; `inner` is PID 1 in them.
# The environment says which: NODE NETWORK ADDRESS POD_RANGE ROOT DISK BIN IMAGES STATE CGROUP DNS PAUSE.
set -euo pipefail
controllers="cpu cpuacct cpuset memory devices freezer blkio pids"

outer() {
  for c in $controllers systemd unified; do
    [ -d /sys/fs/cgroup/$c ] || continue
    for group in "$CGROUP" "$CGROUP/$NODE"; do
      mkdir -p "/sys/fs/cgroup/$c/$group"
      if [ $c = cpuset ]; then
        for f in cpus mems; do
          cat /sys/fs/cgroup/cpuset/cpuset.$f > "/sys/fs/cgroup/cpuset/$group/cpuset.$f"
        done
      fi
    done
    echo $$ > "/sys/fs/cgroup/$c/$CGROUP/$NODE/cgroup.procs"
  done
  exec nsenter --net="/run/netns/$NETWORK" \
    unshare --mount --uts --cgroup --ipc --pid --fork --kill-child --propagation private "$0" inner
}

make_root() {
  hostname "$NODE"
  # Kept over a reboot: what a disk keeps. Fresh: what memory keeps.
  mkdir -p "$DISK"/{upper,work,root,containerd,kubelet}
  mount -t overlay overlay -o "lowerdir=$ROOT,upperdir=$DISK/upper,workdir=$DISK/work" "$DISK/root"
  cd "$DISK/root"
  mount -t proc proc proc
  mount -t sysfs sysfs sys
  mount -t tmpfs tmpfs sys/fs/cgroup
  for c in $controllers; do
    mkdir "sys/fs/cgroup/$c"
    mount -t cgroup -o "$c" cgroup "sys/fs/cgroup/$c"
  done
  mkdir sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
  mount -t tmpfs tmpfs dev
  mkdir -p dev/pts dev/shm dev/net
  for n in null zero full random urandom tty kmsg fuse net/tun; do
    if [ -e "/dev/$n" ]; then touch "dev/$n"; mount --bind "/dev/$n" "dev/$n"; fi
  done
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
  ln -s pts/ptmx dev/ptmx
  ln -s /proc/self/fd dev/fd
  mount -t tmpfs tmpfs run
  mount -t tmpfs tmpfs tmp
  # The few folders of the machine that a node sees: its programs, its images, the cluster's keys
  # and logs, and storage outside all nodes.
  mkdir -p var/lib/containerd var/lib/kubelet opt/kube opt/images "./$STATE"/{pki,log,shared}
  mount --bind "$DISK/containerd" var/lib/containerd
  mount --bind "$DISK/kubelet" var/lib/kubelet
  mount --bind "$BIN" opt/kube
  mount --bind "$IMAGES" opt/images
  for part in pki log shared; do mount --bind "$STATE/$part" "./$STATE/$part"; done
  mkdir -p oldroot
  pivot_root . oldroot
  umount -l /oldroot
  mount --make-rshared /
}

configure() {
  mkdir -p /etc/containerd /etc/cni/net.d /opt/cni
  ln -sfn /usr/lib/cni /opt/cni/bin
  printf '127.0.0.1 localhost\n%s %s\n' "$ADDRESS" "$NODE" > /etc/hosts
  : > /etc/resolv.conf
  cat > /etc/containerd/config.toml <<C
version = 3
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "$PAUSE"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
C
  cat > /etc/cni/net.d/10-holdfast.conflist <<C
{"cniVersion": "0.4.0", "name": "holdfast", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local",
    "ranges": [[{"subnet": "$POD_RANGE"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
C
  cat > /etc/kubelet.yaml <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $STATE/pki/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failSwapOn: false
failCgroupV1: false
clusterDNS: [$DNS]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
tlsCertFile: $STATE/pki/kubelet-$NODE.crt
tlsPrivateKeyFile: $STATE/pki/kubelet-$NODE.key
resolvConf: /etc/resolv.conf
imageGCHighThresholdPercent: 100
evictionHard: {}
localStorageCapacityIsolation: false
C
  sysctl -qw net.ipv4.ip_forward=1
}

inner() {
  make_root
  configure
  log="$STATE/log/$NODE"
  containerd >> "$log-containerd.log" 2>&1 &
  until ctr version > /dev/null 2>&1; do sleep 0.05; done
  # Images stay on the disk over a reboot.
  if [ ! -e /var/lib/containerd/imported ]; then
    for archive in /opt/images/*; do
      ctr -n k8s.io images import --snapshotter overlayfs "$archive" > /dev/null
    done
    touch /var/lib/containerd/imported
  fi
  /opt/kube/kube-proxy --kubeconfig="$STATE/pki/proxy.conf" --hostname-override="$NODE" \
    --proxy-mode=iptables --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
    --conntrack-tcp-timeout-close-wait=0 >> "$log-proxy.log" 2>&1 &
  # One that ends is started again, as by a node's init.
  while :; do
    /opt/kube/kubelet --config=/etc/kubelet.yaml --kubeconfig="$STATE/pki/kubelet-$NODE.conf" \
      --hostname-override="$NODE" --node-ip="$ADDRESS" >> "$log-kubelet.log" 2>&1 &
    echo $! > /run/kubelet.pid
    wait $! || sleep 0.5
  done &
  # PID 1 reaps whatever is left to it.
  while :; do wait -n || sleep 0.2; done
}

"$1"
