//go:build crypto

package agent

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// network is a network namespace, for a pod beside another one: both have their
// ports to themselves.
type network struct {
	file *os.File

	mu    sync.Mutex
	open  map[net.Conn]bool
	links map[string]net.Listener
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{open: map[net.Conn]bool{}, links: map[string]net.Listener{}}
	// On a thread that comes back, and does not end: with it would end what it
	// has started.
	err := onThread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if n.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		return exec.Command("ip", "link", "set", "lo", "up").Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for to := range n.links {
			n.cut(to)
		}
		n.file.Close()
	})
	return n
}

// onThread does something on a thread that is then put back into the namespace that
// it was in.
func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer before.Close()
	failed := f()
	if err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); err != nil {
		panic(err) // the thread is lost
	}
	return failed
}

// do something in the namespace that makes sockets or processes.
func (n *network) do(f func() error) error {
	if n == nil {
		return f()
	}
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// dial an address of the namespace.
func (n *network) dial(ctx context.Context, protocol, address string) (conn net.Conn, err error) {
	err = n.do(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, protocol, address)
		return err
	})
	return conn, err
}

// link has an address of the test's namespace be there in this one too.
func (n *network) link(t *testing.T, address string) {
	t.Helper()
	if n == nil {
		return
	}
	var l net.Listener
	err := n.do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.links[address] = l
	n.mu.Unlock()
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go n.carry(from, address)
		}
	}()
}

func (n *network) carry(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	n.mu.Lock()
	_, linked := n.links[address]
	n.open[from], n.open[to] = true, true
	n.mu.Unlock()
	if !linked {
		return
	}
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(from, to)
	n.mu.Lock()
	delete(n.open, from)
	delete(n.open, to)
	n.mu.Unlock()
}

// cut a link, and the connections over all of them.
func (n *network) cut(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.links[address]; l != nil {
		l.Close()
		delete(n.links, address)
	}
	for conn := range n.open {
		conn.Close()
	}
}
