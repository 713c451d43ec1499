/* Which peers the listener lets in. Loop's thread. */
#ifndef DDI_ADMISSION_H
#define DDI_ADMISSION_H

#include "link/link.h"

/* A HELLO was accepted: let the peer in, refuse it, or probe an older link first. */
void ddi_admission_decide(struct ddi_link *link);

/* The older link with the same id, which `newer` waits for, is alive, or it is gone. */
void ddi_admission_settle(struct ddi_link *newer, bool is_alive);

#endif
