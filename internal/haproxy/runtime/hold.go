package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// Hold is a connection to a worker that stays open. A worker that is told to
// stop ends with its last connection: while this one is open it does not, and
// can be asked how many there still are. It is open as long as it is referred to
// and the process lives.
type Hold struct {
	conn    net.Conn
	answers *bufio.Reader
}

// prompt ends each answer of an interactive connection.
const prompt = "\n> "

// Hold opens such a connection.
func (a Admin) Hold(ctx context.Context) (*Hold, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", string(a.Socket))
	if err != nil {
		return nil, err
	}
	h := &Hold{conn: conn, answers: bufio.NewReader(conn)}
	if _, err := h.ask("prompt"); err != nil {
		conn.Close()
		return nil, fmt.Errorf("HAProxy socket %s: %w", a.Socket, err)
	}
	return h, nil
}

// Info asks for the worker's state. io.EOF: it has ended.
func (h *Hold) Info() (Info, error) {
	answer, err := h.ask("show info")
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF // which of the three it is depends on the moment
	}
	if err != nil {
		return Info{}, err
	}
	return parseInfo(answer)
}

func (h *Hold) ask(command string) (string, error) {
	if err := h.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(h.conn, command+"\n"); err != nil {
		return "", err
	}
	var answer strings.Builder
	for !strings.HasSuffix(answer.String(), prompt) {
		b, err := h.answers.ReadByte()
		if err != nil {
			return "", err
		}
		answer.WriteByte(b)
		if answer.Len() > maxAnswer {
			return "", errUnparsed
		}
	}
	return strings.TrimSuffix(answer.String(), prompt), nil
}
