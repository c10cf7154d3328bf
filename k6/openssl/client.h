// A TLS client on libssl that measures its handshakes.
#ifndef QTLS_CLIENT_H
#define QTLS_CLIENT_H

#include <stdint.h>

// qtls_settings say what clients have in common. Strings may be empty.
typedef struct {
	const char *groups, *signature_algorithms; // separated by colons
	int min_version, max_version;
	const char *ca, *certificate, *key; // PEM
	const char *provider_folder, *provider, *properties;
	int resumption;
} qtls_settings;

// qtls_problem says which option cannot be used, and why.
typedef struct {
	char option[32], reason[256];
} qtls_problem;

typedef struct qtls_context qtls_context;       // for many clients
typedef struct qtls_client qtls_client;         // one at a time, with the session of its last connection
typedef struct qtls_connection qtls_connection; // of a client

typedef enum { QTLS_OK, QTLS_CONNECT, QTLS_TIMEOUT, QTLS_HANDSHAKE, QTLS_VERIFY, QTLS_RESET, QTLS_OTHER } qtls_failure;

// qtls_report is what was seen of a connection.
typedef struct {
	qtls_failure failure;
	int alert; // that either side sent and that ended the connection; 0 if there was none
	char message[256];
	char group[64], signature_algorithm[64], version[16];
	int resumed, hello_retry, tickets;
	int64_t connect_ns;    // TCP
	int64_t handshake_ns;  // from the ClientHello until the client is done
	int64_t client_ns;     // CPU time of this thread in it
	int64_t min_rtt_ns;    // the kernel's; a mean grows with load
	int64_t bytes_sent, bytes_received, certificate_bytes; // of the handshake
} qtls_report;

qtls_context *qtls_context_new(const qtls_settings *settings, qtls_problem *problem);
qtls_client *qtls_client_new(qtls_context *context);
void qtls_client_free(qtls_client *client);

// qtls_connect returns NULL when it failed, as the report says. deadline_ns is a time of qtls_now.
qtls_connection *qtls_connect(qtls_client *client, const char *address, int port, const char *sni, int64_t deadline_ns, qtls_report *report);
// qtls_await_tickets reads until so many have come; with 0 it says good-bye, and reads until the server closes.
int qtls_await_tickets(qtls_connection *connection, int tickets, qtls_report *report);
// qtls_read and qtls_write return how many bytes; 0 is the end, below 0 a failure.
int qtls_read(qtls_connection *connection, void *buffer, int size, qtls_report *report);
int qtls_write(qtls_connection *connection, const void *buffer, int size, qtls_report *report);
// qtls_close leaves no port behind.
void qtls_close(qtls_connection *connection);

int64_t qtls_now(void);

#endif
