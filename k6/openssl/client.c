#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/provider.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

struct qtls_context {
	SSL_CTX *ssl;
	int resumption, verify;
};

struct qtls_client {
	qtls_context *context;
	SSL_SESSION *session; // of the last connection, NULL if there is none to resume
	// Of the present connection:
	int tickets, hello_retry;
	int64_t certificate_bytes;
	int alert;
};

struct qtls_connection {
	qtls_client *client;
	SSL *ssl;
	int socket;
	int64_t deadline;
};

static int client_slot;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void make_slot(void) { client_slot = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL); }

static int64_t clock_ns(clockid_t clock) {
	struct timespec t;
	clock_gettime(clock, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t qtls_now(void) { return clock_ns(CLOCK_MONOTONIC); }

// new_session gets each ticket. The newest one is kept: it lives longest.
static int new_session(SSL *ssl, SSL_SESSION *session) {
	qtls_client *c = SSL_get_ex_data(ssl, client_slot);
	c->tickets++;
	if (!c->context->resumption) return 0;
	SSL_SESSION_free(c->session);
	c->session = session;
	return 1;
}

// hello_retry_random is what tells a HelloRetryRequest from a ServerHello (RFC 8446, 4.1.3).
static const unsigned char hello_retry_random[32] = {
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
};

static void on_message(int write, int version, int type, const void *message, size_t length, SSL *ssl, void *unused) {
	(void)version;
	(void)unused;
	qtls_client *c = SSL_get_ex_data(ssl, client_slot);
	const unsigned char *m = message;
	if (c == NULL || type != SSL3_RT_HANDSHAKE || length < 4) return;
	if (m[0] == SSL3_MT_CERTIFICATE || m[0] == SSL3_MT_COMPRESSED_CERTIFICATE) c->certificate_bytes += length;
	if (!write && m[0] == SSL3_MT_SERVER_HELLO && length >= 38 && memcmp(m + 6, hello_retry_random, 32) == 0) c->hello_retry = 1;
}

// on_info keeps the alert that ends a connection, whichever side sends it.
static void on_info(const SSL *ssl, int where, int value) {
	qtls_client *c = SSL_get_ex_data(ssl, client_slot);
	if (c == NULL || !(where & SSL_CB_ALERT) || (value & 0xff) == SSL_AD_CLOSE_NOTIFY) return;
	c->alert = value & 0xff;
}

// last_error is OpenSSL's first word on what went wrong: later ones say who passed it on.
static void last_error(char *text, size_t size, const char *otherwise) {
	unsigned long code = ERR_peek_error();
	const char *data = NULL;
	int flags = 0;
	ERR_peek_error_all(NULL, NULL, NULL, &data, &flags);
	const char *reason = code ? ERR_reason_error_string(code) : NULL;
	int more = reason && data && (flags & ERR_TXT_STRING) && *data;
	snprintf(text, size, "%s%s%s", reason ? reason : otherwise, more ? ": " : "", more ? data : "");
	ERR_clear_error();
}

static int refuse(qtls_problem *p, const char *option, const char *otherwise) {
	snprintf(p->option, sizeof p->option, "%s", option);
	last_error(p->reason, sizeof p->reason, otherwise);
	return 0;
}

static int load_authorities(SSL_CTX *ssl, OSSL_LIB_CTX *lib, const char *properties, const char *pem, qtls_problem *p) {
	BIO *in = BIO_new_mem_buf(pem, -1);
	int found = 0;
	for (;;) {
		X509 *x = X509_new_ex(lib, properties);
		if (PEM_read_bio_X509(in, &x, NULL, NULL) == NULL) {
			X509_free(x);
			break;
		}
		found += X509_STORE_add_cert(SSL_CTX_get_cert_store(ssl), x);
		X509_free(x);
	}
	int whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
	BIO_free(in);
	if (!found || !whole) return refuse(p, "ca", "no certificate in it");
	ERR_clear_error();
	return 1;
}

// load_certificate has the key checked against the certificate, and takes the chain behind it.
static int load_certificate(SSL_CTX *ssl, OSSL_LIB_CTX *lib, const qtls_settings *s, const char *properties, qtls_problem *p) {
	BIO *in = BIO_new_mem_buf(s->certificate, -1);
	X509 *x = X509_new_ex(lib, properties);
	int ok = PEM_read_bio_X509(in, &x, NULL, NULL) != NULL && SSL_CTX_use_certificate(ssl, x) == 1;
	X509_free(x);
	while (ok) {
		x = X509_new_ex(lib, properties);
		if (PEM_read_bio_X509(in, &x, NULL, NULL) == NULL) {
			X509_free(x);
			ok = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
			break;
		}
		ok = SSL_CTX_add0_chain_cert(ssl, x) == 1;
	}
	BIO_free(in);
	if (!ok) return refuse(p, "certificate", "no certificate in it");
	ERR_clear_error();
	in = BIO_new_mem_buf(s->key, -1);
	EVP_PKEY *key = PEM_read_bio_PrivateKey_ex(in, NULL, NULL, "", lib, properties);
	BIO_free(in);
	ok = key != NULL && SSL_CTX_use_PrivateKey(ssl, key) == 1 && SSL_CTX_check_private_key(ssl) == 1;
	EVP_PKEY_free(key);
	return ok ? 1 : refuse(p, "key", "not the certificate's private key");
}

static int configure(qtls_context *c, OSSL_LIB_CTX *lib, const qtls_settings *s, const char *properties, qtls_problem *p) {
	SSL_CTX *ssl = c->ssl;
	if (!SSL_CTX_set_min_proto_version(ssl, s->min_version)) return refuse(p, "minVersion", "refused");
	if (!SSL_CTX_set_max_proto_version(ssl, s->max_version)) return refuse(p, "maxVersion", "refused");
	if (*s->groups && !SSL_CTX_set1_groups_list(ssl, s->groups)) return refuse(p, "groups", "OpenSSL does not know one of them");
	if (*s->signature_algorithms && !SSL_CTX_set1_sigalgs_list(ssl, s->signature_algorithms))
		return refuse(p, "signatureAlgorithms", "OpenSSL does not know one of them");
	if (*s->ca && !load_authorities(ssl, lib, properties, s->ca, p)) return 0;
	if (*s->certificate && !load_certificate(ssl, lib, s, properties, p)) return 0;
	c->resumption = s->resumption;
	c->verify = *s->ca != 0;
	SSL_CTX_set_verify(ssl, c->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
	SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
	SSL_CTX_sess_set_new_cb(ssl, new_session);
	SSL_CTX_set_msg_callback(ssl, on_message);
	SSL_CTX_set_info_callback(ssl, on_info);
	return 1;
}

qtls_context *qtls_context_new(const qtls_settings *s, qtls_problem *p) {
	pthread_once(&once, make_slot);
	ERR_clear_error();
	const char *properties = *s->properties ? s->properties : NULL;
	OSSL_LIB_CTX *lib = NULL;
	if (*s->provider) {
		// A library context of its own: in the process's a provider would be there for clients without it, too.
		lib = OSSL_LIB_CTX_new();
		if (lib == NULL || (*s->provider_folder && !OSSL_PROVIDER_set_default_search_path(lib, s->provider_folder)) ||
			OSSL_PROVIDER_load(lib, "default") == NULL || OSSL_PROVIDER_load(lib, s->provider) == NULL) {
			refuse(p, "provider", "OpenSSL cannot load it");
			OSSL_LIB_CTX_free(lib);
			return NULL;
		}
	}
	qtls_context *c = calloc(1, sizeof *c);
	c->ssl = SSL_CTX_new_ex(lib, properties, TLS_client_method());
	if (c->ssl == NULL) {
		refuse(p, "properties", "OpenSSL cannot use them");
	} else if (configure(c, lib, s, properties, p)) {
		return c; // and the library context, for as long as the process lives
	}
	SSL_CTX_free(c->ssl);
	free(c);
	OSSL_LIB_CTX_free(lib);
	return NULL;
}

qtls_client *qtls_client_new(qtls_context *context) {
	qtls_client *c = calloc(1, sizeof *c);
	c->context = context;
	return c;
}

void qtls_client_free(qtls_client *c) {
	SSL_SESSION_free(c->session);
	free(c);
}

static int fail(qtls_report *r, qtls_failure failure, const char *message) {
	r->failure = failure;
	snprintf(r->message, sizeof r->message, "%s", message);
	ERR_clear_error();
	return -1;
}

// await waits until the socket is ready, or the deadline passes.
static int await(int socket, short events, int64_t deadline, qtls_report *r) {
	for (;;) {
		int64_t left = deadline - qtls_now();
		if (left <= 0) return fail(r, QTLS_TIMEOUT, "the time limit passed");
		struct timespec t = {left / 1000000000, left % 1000000000};
		struct pollfd p = {.fd = socket, .events = events};
		int n = ppoll(&p, 1, &t, NULL);
		if (n > 0) return 0;
		if (n < 0 && errno != EINTR) return fail(r, QTLS_OTHER, strerror(errno));
	}
}

// connect_tcp returns a socket that does not block, or -1.
static int connect_tcp(const char *address, int port, int64_t deadline, qtls_report *r) {
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
	char service[8];
	snprintf(service, sizeof service, "%d", port);
	int problem = getaddrinfo(address, service, &hints, &found);
	if (problem) return fail(r, QTLS_CONNECT, gai_strerror(problem));
	int s = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
	int refused = s < 0 ? errno : connect(s, found->ai_addr, found->ai_addrlen) ? errno : 0;
	freeaddrinfo(found);
	if (refused == EINPROGRESS) {
		socklen_t size = sizeof refused;
		refused = 0;
		if (await(s, POLLOUT, deadline, r)) goto failed;
		getsockopt(s, SOL_SOCKET, SO_ERROR, &refused, &size);
	}
	if (refused == ETIMEDOUT) {
		fail(r, QTLS_TIMEOUT, strerror(refused));
		goto failed;
	}
	if (refused) {
		fail(r, QTLS_CONNECT, strerror(refused));
		goto failed;
	}
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return s;
failed:
	if (s >= 0) close(s);
	return -1;
}

// ended says how a call of libssl failed, which returned code. It returns 1 when the call is to be made again.
static int ended(qtls_connection *k, int code, qtls_report *r) {
	int number = errno;
	int error = SSL_get_error(k->ssl, code);
	switch (error) {
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		return await(k->socket, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, k->deadline, r) ? -1 : 1;
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_SYSCALL:
		if (number == ECONNRESET || number == EPIPE || number == 0) return fail(r, QTLS_RESET, number ? strerror(number) : "the server closed the connection");
		return fail(r, QTLS_OTHER, strerror(number));
	}
	unsigned long first = ERR_peek_error();
	int reason = ERR_GET_REASON(first);
	long verified = k->client->context->verify ? SSL_get_verify_result(k->ssl) : X509_V_OK;
	if (verified != X509_V_OK && !SSL_is_init_finished(k->ssl)) return fail(r, QTLS_VERIFY, X509_verify_cert_error_string(verified));
	if (ERR_GET_LIB(first) == ERR_LIB_SSL && reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		return fail(r, QTLS_RESET, "the server closed the connection");
	r->alert = k->client->alert;
	char text[256];
	last_error(text, sizeof text, "OpenSSL says no more");
	return fail(r, QTLS_HANDSHAKE, text);
}

static void fill(qtls_connection *k, qtls_report *r) {
	SSL *ssl = k->ssl;
	const char *name = NULL;
	r->resumed = SSL_session_reused(ssl);
	snprintf(r->version, sizeof r->version, "%s", SSL_get_version(ssl));
	const char *group = SSL_get0_group_name(ssl);
	snprintf(r->group, sizeof r->group, "%s", group ? group : "none"); // RSA key exchange, and TLS 1.2 resumed
	if (!r->resumed && SSL_get0_peer_signature_name(ssl, &name) && name) snprintf(r->signature_algorithm, sizeof r->signature_algorithm, "%s", name);
	r->hello_retry = k->client->hello_retry;
	r->tickets = k->client->tickets; // those of TLS 1.2 come in the handshake
	r->certificate_bytes = k->client->certificate_bytes;
	r->bytes_received = BIO_number_read(SSL_get_rbio(ssl));
	r->bytes_sent = BIO_number_written(SSL_get_wbio(ssl));
	struct tcp_info info = {0};
	socklen_t size = sizeof info;
	if (getsockopt(k->socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) r->min_rtt_ns = (int64_t)info.tcpi_min_rtt * 1000;
}

static int prepare(qtls_connection *k, const char *address, const char *sni) {
	SSL *ssl = k->ssl = SSL_new(k->client->context->ssl);
	if (ssl == NULL || !SSL_set_ex_data(ssl, client_slot, k->client) || !SSL_set_fd(ssl, k->socket)) return 0;
	if (*sni) return SSL_set_tlsext_host_name(ssl, sni) && SSL_set1_host(ssl, sni);
	return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), address);
}

// free_connection closes the socket with a reset: a port in TIME_WAIT is one that is missing, and after some 28,000
// connections there are no more.
static void free_connection(qtls_connection *k) {
	struct linger reset = {.l_onoff = 1};
	setsockopt(k->socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
	SSL_free(k->ssl);
	close(k->socket);
	free(k);
	ERR_clear_error();
}

qtls_connection *qtls_connect(qtls_client *c, const char *address, int port, const char *sni, int64_t deadline, qtls_report *r) {
	memset(r, 0, sizeof *r);
	ERR_clear_error();
	c->tickets = c->hello_retry = c->alert = 0;
	c->certificate_bytes = 0;
	int64_t start = qtls_now();
	int s = connect_tcp(address, port, deadline, r);
	if (s < 0) return NULL;
	int64_t connected = qtls_now();
	r->connect_ns = connected - start;

	qtls_connection *k = calloc(1, sizeof *k);
	k->client = c;
	k->socket = s;
	k->deadline = deadline;
	// OpenSSL takes care that a connection's session is not resumed again. So that gets a copy.
	SSL_SESSION *session = c->session, *copy = session != NULL ? SSL_SESSION_dup(session) : NULL;
	c->session = NULL;
	int64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	int prepared = prepare(k, address, sni) && (session == NULL || (copy != NULL && SSL_set_session(k->ssl, copy)));
	SSL_SESSION_free(copy); // the connection has it
	if (!prepared) {
		SSL_SESSION_free(session);
		last_error(r->message, sizeof r->message, "OpenSSL cannot prepare the connection");
		r->failure = QTLS_OTHER;
		free_connection(k);
		return NULL;
	}
	int code, again = 1;
	while (again == 1) {
		ERR_clear_error();
		errno = 0;
		code = SSL_connect(k->ssl);
		if (code == 1) break;
		again = ended(k, code, r);
	}
	r->handshake_ns = qtls_now() - connected;
	r->client_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
	if (code != 1) {
		if (again == 0) fail(r, QTLS_RESET, "the server closed the connection");
		SSL_SESSION_free(session);
		free_connection(k);
		return NULL;
	}
	fill(k, r);
	// A ticket of TLS 1.3 should be for one connection (RFC 8446, C.4). But a server whose ticket keys are given to it, as
	// HAProxy's are, sends no new one when it resumes: then the one that it has taken is used again.
	if (session != NULL && SSL_session_reused(k->ssl) && c->session == NULL) {
		c->session = session;
	} else {
		SSL_SESSION_free(session);
	}
	return k;
}

// receive reads into a buffer and returns how many bytes: 0 is the end, below 0 a failure. With tickets to wait for it also
// returns 0 as soon as so many have come. It looks at the clock each time: a server that always has more to say is never waited
// for, and would be read for ever.
static int receive(qtls_connection *k, void *buffer, int size, int tickets, qtls_report *r) {
	for (;;) {
		if (qtls_now() >= k->deadline) return fail(r, QTLS_TIMEOUT, "the time limit passed");
		ERR_clear_error();
		errno = 0;
		int n = SSL_read(k->ssl, buffer, size);
		r->tickets = k->client->tickets;
		if (n > 0) return n;
		if (tickets > 0 && r->tickets >= tickets) return 0;
		if ((n = ended(k, n, r)) != 1) return n;
	}
}

int qtls_read(qtls_connection *k, void *buffer, int size, qtls_report *r) { return receive(k, buffer, size, 0, r); }

int qtls_write(qtls_connection *k, const void *buffer, int size, qtls_report *r) {
	for (;;) {
		ERR_clear_error();
		errno = 0;
		int n = SSL_write(k->ssl, buffer, size);
		if (n > 0) return n;
		if ((n = ended(k, n, r)) != 1) return n ? n : fail(r, QTLS_RESET, "the server closed the connection");
	}
}

// say_goodbye reads until the server has closed its side.
static int say_goodbye(qtls_connection *k, qtls_report *r) {
	char rest[16 << 10];
	int n;
	ERR_clear_error();
	SSL_shutdown(k->ssl);
	while ((n = receive(k, rest, sizeof rest, 0, r)) > 0) {
	}
	if (n < 0 && r->failure == QTLS_RESET) { // closed without a close_notify, which is no failure of the handshake
		r->failure = QTLS_OK;
		r->message[0] = 0;
		n = 0;
	}
	return n;
}

int qtls_await_tickets(qtls_connection *k, int tickets, qtls_report *r) {
	char rest[16 << 10];
	if (tickets == 0 || SSL_session_reused(k->ssl)) return say_goodbye(k, r); // there may be no new one
	if (SSL_version(k->ssl) < TLS1_3_VERSION || r->tickets >= tickets) return 0;
	int n = receive(k, rest, sizeof rest, tickets, r);
	if (n > 0 || r->tickets >= tickets) return 0; // a server that speaks first has said enough
	if (n == 0) return fail(r, QTLS_RESET, "the server closed the connection before it sent a session ticket");
	if (r->failure == QTLS_TIMEOUT)
		fail(r, QTLS_TIMEOUT, "no session ticket came within the time limit; option tickets: 0 is for servers that send none");
	return -1;
}

void qtls_close(qtls_connection *k) {
	// Without a close_notify SSL_free makes the session one that cannot be resumed.
	SSL_set_shutdown(k->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
	free_connection(k);
}
