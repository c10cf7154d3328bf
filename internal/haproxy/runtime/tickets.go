package runtime

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"qtls.dev/qtls/internal/tickets"
)

// TicketKeys are those that a process has from a file of session-ticket keys:
// old, encrypting, next.
type TicketKeys [tickets.Size]tickets.Key

// ErrNoTicketFile says that the configuration names no such file.
var ErrNoTicketFile = errors.New("HAProxy uses no file of ticket keys of that name")

// TicketKeys asks which keys the worker has now from a file, by the name that
// the configuration has for it.
func (a Admin) TicketKeys(ctx context.Context, file string) (TicketKeys, error) {
	answer, err := a.do(ctx, "show tls-keys "+escape(file))
	if err != nil {
		return TicketKeys{}, err
	}
	return parseTicketKeys(answer)
}

// parseTicketKeys reads lines of the form `<file>.<key> <base64>`, the oldest
// key first. No error has any of the answer in it.
func parseTicketKeys(answer string) (keys TicketKeys, err error) {
	if strings.Contains(answer, "unable to locate referenced filename") {
		return keys, ErrNoTicketFile
	}
	n := 0
	for line := range strings.Lines(answer) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(fields) != 2 || n == len(keys) || !strings.HasSuffix(fields[0], fmt.Sprintf(".%d", n)) {
			return TicketKeys{}, fmt.Errorf("show tls-keys: not three keys in order: %w", errUnparsed)
		}
		key, err := base64.StdEncoding.Strict().DecodeString(fields[1])
		if err != nil || len(key) != tickets.KeySize {
			return TicketKeys{}, fmt.Errorf("show tls-keys: key %d is not %d bytes in base64: %w", n, tickets.KeySize, errUnparsed)
		}
		keys[n] = tickets.Key(key)
		n++
	}
	if n != len(keys) {
		return TicketKeys{}, fmt.Errorf("show tls-keys: %d keys: %w", n, errUnparsed)
	}
	return keys, nil
}

// PushTicketKey gives the worker another key of a file: as the next one, after
// which the former next one encrypts, and the oldest is gone.
func (a Admin) PushTicketKey(ctx context.Context, file string, key tickets.Key) error {
	return a.pushTicketKey(ctx, "", file, key)
}

// TicketFiles are the files of ticket keys of a process, by the names that its
// configuration has for them. Old workers answer too.
func (m Master) TicketFiles(ctx context.Context, pid int) ([]string, error) {
	answer, err := m.do(ctx, fmt.Sprintf("@!%d show tls-keys", pid))
	if err != nil {
		return nil, err
	}
	return parseTicketFiles(answer)
}

// parseTicketFiles reads lines of the form `<id> (<file>)`.
func parseTicketFiles(answer string) (files []string, err error) {
	for line := range strings.Lines(answer) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		_, name, ok := strings.Cut(line, " (")
		name, closed := strings.CutSuffix(name, ")")
		if !ok || !closed || name == "" {
			return nil, fmt.Errorf("show tls-keys: %.80q: %w", line, errUnparsed)
		}
		files = append(files, name)
	}
	return files, nil
}

// PushTicketKey gives any of the master's processes another key, as
// Admin.PushTicketKey does.
func (m Master) PushTicketKey(ctx context.Context, pid int, file string, key tickets.Key) error {
	return m.pushTicketKey(ctx, fmt.Sprintf("@!%d ", pid), file, key)
}

func (s Socket) pushTicketKey(ctx context.Context, process, file string, key tickets.Key) error {
	name := process + "set ssl tls-key " + escape(file)
	answer, err := s.doAs(ctx, name, name+" "+key.Base64())
	if err != nil {
		return err
	}
	if !strings.Contains(answer, "TLS ticket key updated") {
		return &Refusal{Message(strings.ReplaceAll(answer, key.Base64(), key.String()))}
	}
	return nil
}
