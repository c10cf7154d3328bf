//go:build crypto

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// line is a way between the test's namespace, at nearEnd, and another one, at farEnd:
// a TUN device at each end, and between them this process, which can be slow and lose
// packets as a network does.
type line struct {
	// delay of each packet, in nanoseconds.
	delay atomic.Int64
	// loses every so many-th packet with data to the far end, and losesBack to the near one;
	// 0: none. Who misses an acknowledgement would send again what has arrived.
	loses, losesBack atomic.Int64
}

// headers of IPv4 and TCP, with options, have so many bytes at most.
const headers = 60 + 60

const nearEnd, farEnd = "192.0.2.1", "192.0.2.2"

func newLine(t *testing.T, far *network) *line {
	t.Helper()
	l := &line{}
	a, b := tunnel(t, nil, nearEnd), tunnel(t, far, farEnd)
	go l.carry(b, a, &l.loses)
	go l.carry(a, b, &l.losesBack)
	return l
}

// tunnel is a device in a namespace with an address. Its packets end up here.
func tunnel(t *testing.T, n *network, address string) *os.File {
	t.Helper()
	var device *os.File
	err := n.do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		const name = "line0"
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return fmt.Errorf("device %s: %w", name, err)
		}
		device = os.NewFile(uintptr(fd), "/dev/net/tun") // not before: nobody can wait for one that is no device yet
		for _, arguments := range [][]string{{"address", "add", address + "/30", "dev", name}, {"link", "set", name, "up"}} {
			if out, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %v: %w: %s", arguments, err, out)
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		t.Skipf("no network can be stood in for here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { device.Close() })
	return device
}

// carry packets one way, in their order.
func (l *line) carry(to, from *os.File, loses *atomic.Int64) {
	type packet struct {
		due  time.Time
		data []byte
	}
	queue := make(chan packet, 1024) // a packet that finds it full waits
	go func() {
		defer close(queue)
		buffer := make([]byte, 1<<16)
		for n := int64(0); ; {
			size, err := from.Read(buffer)
			if err != nil {
				return // it is closed
			}
			if size > headers {
				n++
				if every := loses.Load(); every > 0 && n%every == 0 {
					continue
				}
			}
			queue <- packet{time.Now().Add(time.Duration(l.delay.Load())), bytes.Clone(buffer[:size])}
		}
	}()
	for p := range queue {
		time.Sleep(time.Until(p.due))
		_, _ = to.Write(p.data) // a network may lose it
	}
}
