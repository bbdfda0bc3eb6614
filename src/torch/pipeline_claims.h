/* pipeline_claims.h - claims of what the stages of torch.distributed.pipelining hold. Nothing here raises. */
#ifndef MST_PIPELINE_CLAIMS_H
#define MST_PIPELINE_CLAIMS_H

#include "torch/state.h"

/* A root call begins: if a pipeline stage makes it, the stage is known from now on. What the known stages hold is
 * claimed. */
void mst_pipeline_at_root_call(void);
/* Claim what the known stages hold, in a pass. */
void mst_claim_pipeline_stages(void);
/* A tracker or recording begins: the stages of earlier ones are forgotten. */
void mst_pipeline_forget(void);

#endif
