// Package runtime speaks with a running HAProxy over its two kinds of unix
// socket: that of the master process (processes, reload) and that of a worker
// (certificates, servers, counters). The protocol is section 9.3 of HAProxy's
// management guide; what is parsed here is the output of HAProxy 3.2.
package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// timeout bounds a command for which the caller's context sets no deadline: a
// worker answers within milliseconds unless it is stuck.
const timeout = 10 * time.Second

// maxAnswer bounds what is read of one answer, in bytes: `show stat` of a
// thousand servers has half a megabyte.
const maxAnswer = 16 << 20

// Socket is the path of one of HAProxy's sockets.
type Socket string

// do sends one command, or several separated by `;`, and reads the whole
// answer. A fresh connection for each keeps commands apart: HAProxy closes it
// at the end of the answer.
func (s Socket) do(ctx context.Context, command string) (string, error) {
	name, _, _ := strings.Cut(command, "<<") // a payload may be a private key
	return s.doAs(ctx, strings.TrimSpace(name), command)
}

// doAs is do for a command that may not be told: an error has the name in its
// place.
func (s Socket) doAs(ctx context.Context, name, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := s.exchange(ctx, command)
	if err != nil {
		return "", fmt.Errorf("HAProxy socket %s: %s: %w", s, name, err)
	}
	return answer, nil
}

func (s Socket) exchange(ctx context.Context, command string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", string(s))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", contextError(ctx, err)
	}
	// Without the end of the input the master waits for more commands.
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return "", contextError(ctx, err)
	}
	var answer bytes.Buffer
	if _, err := io.Copy(&answer, io.LimitReader(conn, maxAnswer+1)); err != nil {
		return "", contextError(ctx, err)
	}
	if answer.Len() > maxAnswer {
		return "", fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	// An empty line ends every answer. Without it the process ended in mid-answer.
	if !strings.HasSuffix("\n"+answer.String(), "\n\n") {
		return "", io.ErrUnexpectedEOF
	}
	return answer.String(), nil
}

func contextError(ctx context.Context, err error) error {
	if c := ctx.Err(); c != nil {
		return c
	}
	return err
}

// errUnparsed says that an answer is not what HAProxy 3.2 writes.
var errUnparsed = errors.New("the answer does not parse")
