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
// container has of its control group. It waits for nobody: an agent that does not
// take what is sent fails it.
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
	if err := unix.Sendmsg(s, []byte{0}, unix.UnixRights(int(folder.Fd())), &unix.SockaddrUnix{Name: socket}, unix.MSG_DONTWAIT); err != nil {
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

// borrow what is lent and passes a check, until the socket is closed. HAProxy's
// container may send anything.
func (b *borrowed) borrow(conn *net.UnixConn, check func(dir string) error) {
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := conn.ReadMsgUnix(data, rights)
		if err != nil {
			return
		}
		folder := onlyFolder(rights[:n])
		if folder == nil {
			continue
		}
		if err := check(pathOf(folder)); err != nil {
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

// onlyFolder that a message brings, if that is all it brings; else nil, and what came
// is closed.
func onlyFolder(rights []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	var files []*os.File
	for i := range messages {
		descriptors, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range descriptors {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "control group of HAProxy's container"))
		}
	}
	if len(files) == 1 {
		if info, err := files[0].Stat(); err == nil && info.IsDir() {
			return files[0]
		}
	}
	for _, f := range files {
		f.Close()
	}
	return nil
}

// pathOf an open folder. Its own path is another folder here: the agent's own group.
func pathOf(folder *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d", folder.Fd())
}

var errNotLent = errors.New("HAProxy's container has not lent its control group")

// usage of the container that lent its control group.
func (b *borrowed) usage() (cgroup.Usage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.folder == nil {
		return cgroup.Usage{}, errNotLent
	}
	return cgroup.Read(pathOf(b.folder))
}
