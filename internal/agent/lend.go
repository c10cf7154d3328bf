package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"qtls.dev/qtls/internal/cgroup"
)

// A container sees its own control group and no other's. HAProxy's therefore lends
// the agent its view of it, as an open folder through a socket, before it becomes
// HAProxy. An agent that starts anew is without until that container does.

// LendControlGroup gives the agent that listens on a socket the view that this
// container has of its control group.
func LendControlGroup(socket, dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("a socket: %w", err)
	}
	defer unix.Close(s)
	if err := unix.Sendmsg(s, []byte{0}, unix.UnixRights(int(folder.Fd())), &unix.SockaddrUnix{Name: socket}, 0); err != nil {
		return fmt.Errorf("%s: %w", socket, err)
	}
	return nil
}

// borrowed is the folder that was lent last.
type borrowed struct {
	mu     sync.Mutex
	folder *os.File
}

// listenForLoans opens the socket that LendControlGroup takes.
func listenForLoans(path string) (*net.UnixConn, error) {
	return listenOn(path, func() (*net.UnixConn, error) {
		return net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	})
}

// borrow what is lent, until the socket is closed.
func (b *borrowed) borrow(conn *net.UnixConn) {
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := conn.ReadMsgUnix(data, rights)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil || len(messages) != 1 {
			continue
		}
		descriptors, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(descriptors) != 1 {
			continue
		}
		unix.CloseOnExec(descriptors[0])
		folder := os.NewFile(uintptr(descriptors[0]), "control group of HAProxy's container")
		if info, err := folder.Stat(); err != nil || !info.IsDir() {
			folder.Close()
			continue
		}
		b.mu.Lock()
		if b.folder != nil {
			b.folder.Close()
		}
		b.folder = folder
		b.mu.Unlock()
	}
}

var errNotLent = errors.New("HAProxy's container has not lent its control group")

// usage of the container that lent its control group.
func (b *borrowed) usage() (cgroup.Usage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.folder == nil {
		return cgroup.Usage{}, errNotLent
	}
	// By way of the open folder: its path is the agent's own group here.
	return cgroup.Read(fmt.Sprintf("/proc/self/fd/%d", b.folder.Fd()))
}
