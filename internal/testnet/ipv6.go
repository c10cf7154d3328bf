// Package testnet makes networks for tests.
package testnet

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WithoutIPv6 makes the rest of a test, and the programs that it starts, find a
// kernel that was booted with ipv6.disable=1: it makes no sockets of IPv6.
func WithoutIPv6(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test
	const (
		number, family = 0, 16 // where seccomp_data has them, on a machine of little endian
		load           = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal          = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		answer         = unix.BPF_RET | unix.BPF_K
	)
	filter := []unix.SockFilter{
		{Code: load, K: number},
		{Code: equal, K: unix.SYS_SOCKET, Jf: 3},
		{Code: load, K: family},
		{Code: equal, K: unix.AF_INET6, Jf: 1},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		t.Fatal(err)
	}
}
