# Two Soft-RoCE devices whose packets really cross a wire, a pair of veth. Both lie in one network namespace, because
# Soft-RoCE of Linux 6.1 looks for routes in the first one only; rules of routing send what goes from one of the two
# addresses to the other out of its own end of the wire, and not over lo.
a=10.8.0.1 b=10.8.0.2
ip link set lo up
ip link add wire-a type veth peer name wire-b
ip address add $a/24 dev wire-a
ip address add $b/24 dev wire-b
for name in all wire-a wire-b; do
  echo 1 >/proc/sys/net/ipv4/conf/$name/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/$name/rp_filter
done
# The largest payload of RoCE is 4096 bytes, and the wire has to take it with its headers.
for name in wire-a wire-b; do ip link set $name mtu 4500 up; done
ip route add $b dev wire-a src $a table 102
ip route add $a dev wire-b src $b table 101
ip rule add pref 10 iif wire-a lookup local
ip rule add pref 11 iif wire-b lookup local
ip rule add pref 20 iif lo from $a to $b lookup 102
ip rule add pref 21 iif lo from $b to $a lookup 101
ip rule add pref 30 lookup local
ip rule del pref 0
rdma link add rxe0 type rxe netdev wire-a
rdma link add rxe1 type rxe netdev wire-b
